"""Data sets: opening and describing them, decoding, augmentation, sampling and loading of images."""
