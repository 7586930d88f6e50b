"""A small ViT learns to read: 99% of unseen handwritten digits in about 20 seconds on 2 CPU cores.

    python examples/digits.py

The 1,797 digits of 8 x 8 pixels come with scikit-learn; every fifth is held out. Patches are 4 x 4, so a digit is a
sentence of four words. The training loop is the plainest there is, to be read.
"""

import time

import torch
import torch.nn.functional as F
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from sklearn.datasets import load_digits
from torch import Tensor

import vitreous

EPOCHS, BATCH = 40, 32


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, then held-out ones. Images are (N, 1, 8, 8) in [-1, 1]."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(data.target)
    held_out = torch.arange(len(labels)) % 5 == 0
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]


def shifted(images: Tensor) -> Tensor:
    """Each image moved by up to one pixel: a digit is the same digit a little to the left."""
    padded = F.pad(images, (1, 1, 1, 1), value=-1.0)
    dy, dx = torch.randint(3, (2, len(images), 1, 1))
    rows, cols = dy + torch.arange(8).view(1, 8, 1), dx + torch.arange(8).view(1, 1, 8)
    return padded[torch.arange(len(images)).view(-1, 1, 1), 0, rows, cols][:, None]


def main() -> None:
    torch.manual_seed(0)
    train_images, train_labels, test_images, test_labels = digits()
    model = vitreous.create(
        "Ti/16", image_size=8, patch_size=4, channels=1, width=64, depth=4, heads=4, mlp_dim=128, num_classes=10
    )
    assert isinstance(model, vitreous.VisionTransformer)
    cost = vitreous.cost(model)
    print(f"a ViT of {cost.parameters:,} parameters reads {len(train_labels):,} digits, {cost.tokens} patches each")

    steps = EPOCHS * (len(train_labels) // BATCH)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=steps, pct_start=0.2)
    bar = Progress(
        TextColumn("{task.fields[loss]}"), BarColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn()
    )
    start = time.perf_counter()
    model.train()
    with bar:
        task = bar.add_task("", total=steps, loss="loss -", rate="")
        done = 0
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(train_labels)).split(BATCH)[: steps // EPOCHS]:
                loss = F.cross_entropy(model(shifted(train_images[batch])), train_labels[batch], label_smoothing=0.1)
                optimiser.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimiser.step()
                schedule.step()
                done += len(batch)
                rate = f"{done / (time.perf_counter() - start):,.0f} images/s"
                bar.update(task, advance=1, loss=f"loss {loss.item():.3f}", rate=rate)

    with torch.no_grad():
        right = model.eval()(test_images).argmax(1) == test_labels
    seconds = time.perf_counter() - start
    print(f"held out: {right.sum()} of {len(right)} right, {100 * right.float().mean():.1f}%, after {seconds:.0f} s")
    print("next: .venv/bin/vitreous models, docs/model.md, and vitreous.create in Python")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("stopped; run it again to start over") from None
