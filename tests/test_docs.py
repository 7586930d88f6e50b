"""Generated parts of the documentation are current, links work, and accuracies name their images."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CARD = ROOT / "src" / "vitreous" / "weights" / "shipped" / "vitreous-mini.md"


def test_excerpts_and_tables_are_up_to_date() -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "docs" / "refresh.py", "--check"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_and_anchors_exist() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), CARD, *ROOT.glob("CONTRIBUTING.md")]
    assert len(pages) >= 3
    for page in pages:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
            if not target.startswith(("http:", "https:")):
                linked = page.parent / target if target else page
                assert linked.exists(), f"{page.name}: {target}"
                if anchor and linked.suffix == ".md":
                    assert anchor in anchors(linked), f"{page.name}: {target}#{anchor}"


def tables(text: str) -> Iterator[list[str]]:
    """Yield the lines of each table of a page."""
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            lines.append(line)
        elif lines:
            yield lines
            lines = []


@pytest.mark.parametrize("page", [ROOT / "README.md", CARD], ids=lambda page: page.name)
def test_an_accuracy_names_its_images(page: Path) -> None:
    """Every table row with a percentage, or the header of the table, says on which images it was measured."""
    rows = 0
    for head, _, *body in tables(page.read_text()):
        for row in body:
            if re.search(r"\d\d\.\d%", row):
                rows += 1
                assert re.search(r"[\d,]{3,} (test|validation)|images", row + head), row
    assert rows >= 6


def test_the_size_of_the_shipped_checkpoint_is_stated_correctly() -> None:
    size = f"{CARD.with_suffix('.safetensors').stat().st_size / 1e6:.1f} MB"
    for page in (CARD, ROOT / "docs" / "weights.md", ROOT / "README.md"):
        stated = re.findall(r"vitreous-mini[^|]{0,200}?([\d.]+ MB)|([\d.]+ MB) in fp16", page.read_text())
        assert {part for pair in stated for part in pair if part} <= {size}, page.name
    assert size in CARD.read_text()
