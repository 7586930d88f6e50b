"""The documentation shows the code as it is."""

import re
import subprocess
import sys
from pathlib import Path

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
