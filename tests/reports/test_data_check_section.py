"""The section "Data check" of a training report."""

import numpy as np
import pytest

from vitreous.reports.data_check_section import data_check_section
from vitreous.reports.training_report import ExampleImage


def image(name: str, label: str, *answers: tuple[str, float]) -> ExampleImage:
    return ExampleImage(name, np.zeros((4, 4), np.uint8), (label,), answers, 3.0)


WORST = [
    image("<b>1.jpg", "cat", ("dog", 0.97), ("cat", 0.02)),
    image("2.jpg", "cat", ("dog", 0.6), ("cat", 0.3)),  # not confident
    image("3.jpg", "cat", ("cat", 0.95), ("dog", 0.05)),  # right
    image("4.jpg", "cat", ("dog", 0.9), ("cat", 0.1)),  # the label is not unlikely
]


def test_confident_mistakes_on_held_out_images_are_listed() -> None:
    html = data_check_section(WORST, "test", 3, "vitreous data 'a b' --check")
    assert "1 of the 4 test images with the largest loss, which the model was not trained on" in html
    assert "&lt;b&gt;1.jpg" in html
    assert "2.jpg" not in html
    assert "3 images could not be read" in html
    assert "vitreous data &#x27;a b&#x27; --check" in html


@pytest.mark.parametrize(
    ("worst", "split", "words"),
    [
        (WORST[1:], "val", "Of the 3 val images with the largest loss, which the model was not trained on, none"),
        (WORST, "train", "No images were held out"),
        ([], "val", "No images were held out"),
    ],
)
def test_no_suspects(worst: list[ExampleImage], split: str, words: str) -> None:
    html = data_check_section(worst, split, 0, "vitreous data x --check")
    assert words in html
    assert "<ul>" not in html
    assert "could not be read" not in html


def test_without_a_command_there_is_no_section() -> None:
    assert not data_check_section(WORST, "test", 3, "")
