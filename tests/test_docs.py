"""The documentation shows the code as it is."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_excerpts_and_tables_are_up_to_date() -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "docs" / "refresh.py", "--check"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert len(pages) >= 3
    for page in pages:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            if not target.startswith(("http:", "https:")):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def tables(text: str) -> Iterator[list[str]]:
    """The tables of a page: the lines of each."""
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            lines.append(line)
        elif lines:
            yield lines
            lines = []


@pytest.mark.parametrize("page", ["README.md", "src/vitreous/weights/shipped/vitreous-mini.md"])
def test_an_accuracy_names_its_images(page: str) -> None:
    """Every row with a percentage says on which images it was measured, or the head of its table does."""
    rows = 0
    for head, _, *body in tables((ROOT / page).read_text()):
        for row in body:
            if re.search(r"\d\d\.\d%", row):
                rows += 1
                assert re.search(r"[\d,]{3,} (test|validation)|images", row + head), row
    assert rows >= 6
