"""Helpers that know nothing of Vision Transformers. They import each other and errors.py, nothing else of ours."""
