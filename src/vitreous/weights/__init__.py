"""Checkpoints of other programs: one file for each dialect, into the native layout and its config."""
