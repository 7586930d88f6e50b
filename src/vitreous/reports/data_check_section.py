"""The section "Data check" of a training report: labels that may be wrong, and the command for the complete check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vitreous.errors import format_count
from vitreous.reports.class_tables import percent
from vitreous.utils.html import text

if TYPE_CHECKING:
    from vitreous.reports.training_report import ExampleImage

CONFIDENT, UNLIKELY = 0.9, 0.05  # minimum probability of another class, and maximum probability of the label


def data_check_section(worst: Sequence[ExampleImage], split: str, unreadable: int, command: str) -> str:
    """HTML. `worst`: the images of `split` with the largest loss. Empty without a command."""
    if not command:
        return ""
    parts = [f"<p>{_suspects(worst, split)}</p>"]
    suspects = [image for image in worst if _is_suspect(image)] if split != "train" else []
    if suspects:
        items = "".join(
            f'<li><span class="name">{text(image.name)}</span>: label <b class="name">{text(image.truth[0])}</b>,'
            f' predicted <b class="name">{text(image.answers[0][0])}</b> with {percent(image.answers[0][1])}</li>'
            for image in suspects
        )
        parts.append(f"<ul>{items}</ul>")
    if unreadable:
        parts.append(f"<p>{format_count(unreadable, 'image')} could not be read (bad_images.txt).</p>")
    parts.append(
        "<p>This command checks all images: labels, copies and leaks, outliers, tiny and unreadable images, and which"
        f" class needs more pictures. It changes nothing.</p><pre><code>{text(command)}</code></pre>"
    )
    return "".join(parts)


def _suspects(worst: Sequence[ExampleImage], split: str) -> str:
    if split == "train" or not worst:
        return "No images were held out, so this run says nothing about wrong labels."
    count = sum(map(_is_suspect, worst))
    images = f"the {len(worst)} {text(split)} images with the largest loss, which the model was not trained on"
    if not count:
        return f"Of {images}, none is confidently predicted as another class."
    return f"{count} of {images}: confidently predicted as another class, so that the label may be wrong."


def _is_suspect(image: ExampleImage) -> bool:
    """Whether another class than the single label has a high probability, and the label a low one."""
    if len(image.truth) != 1 or not image.answers or image.answers[0][0] == image.truth[0]:
        return False
    label = dict(image.answers).get(image.truth[0], image.answers[-1][1])  # at most that of the last answer
    return image.answers[0][1] >= CONFIDENT and label <= UNLIKELY
