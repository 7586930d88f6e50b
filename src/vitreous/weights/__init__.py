"""Checkpoints: read and written in all dialects (Google, timm, Hugging Face, torchvision, DINO, native).

load.py     `vitreous.load`: opens the files, detects the dialect, builds the model, reports every tensor
save.py     `vitreous.save` and `vitreous.convert`: plans the file of a dialect, checks it, writes it
dialect.py  the interface that each dialect module implements
"""
