"""Checkpoints: one file for each dialect, with one table that is read both ways; finding, opening, accounting, writing.

load.py  finds the files, asks a dialect what is in them, accounts for every tensor and makes a model of it
save.py  asks a dialect how it would write a model, names what it cannot express, and writes it
"""
