"""`examples/segmentation.py` on a tiny setting: a head on tokens segments better than colour."""

import re
import sys
from pathlib import Path

import torch
from PIL import Image

import command

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_tokens_segment_better_than_colours(tmp_path: Path) -> None:
    options = ("--images", 24, "--size", 96, "--steps", 15)
    result = command.script(EXAMPLES / "segmentation.py", "vitreous-mini", tmp_path / "masks.png", *options)
    numbers = [float(number) for number in re.findall(r"^  ([\d.]+)%", result.stdout, re.MULTILINE)]
    by_tokens, by_colour, by_nothing = numbers
    assert "on 8 test images, trained on 24" in result.stdout
    assert by_tokens > by_colour + 10
    assert by_tokens > by_nothing + 10
    with Image.open(tmp_path / "masks.png") as picture:
        assert picture.width > 500


def test_mean_iou() -> None:
    sys.path.insert(0, str(EXAMPLES))
    try:
        from segmentation import composites, mean_iou
    finally:
        sys.path.remove(str(EXAMPLES))
    truth = torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1]])
    predicted = torch.tensor([[0, 0, 0, 1], [0, 0, 1, 1]])
    assert abs(mean_iou(predicted, truth) - (4 / 5 + 3 / 4) / 2) < 1e-6  # the third class occurs nowhere
    images, masks = composites(3, test=True, seed=0)
    assert images.shape == (3, 96, 96, 3)
    assert masks.unique().tolist() == [0, 1, 2]


def test_a_model_without_tokens_is_refused(tmp_path: Path) -> None:
    result = command.script(EXAMPLES / "segmentation.py", "vitreous-mini", tmp_path / "x.png", "--size", 97)
    assert result.returncode == 2
    assert "97" in result.stderr
