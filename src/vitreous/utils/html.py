"""What every page that we write has in common: text that stays text, and no script but its own."""

import base64
import hashlib
from html import escape

from vitreous.utils.console import printable


def clean(value: object) -> str:
    """Anything as text that can be written."""
    return printable(value, keep="\t\n")


def text(value: object) -> str:
    """Anything as HTML that shows it, and does nothing else."""
    return escape(clean(value))


def policy(script: str) -> str:
    """What the browser itself keeps the page to: no network, and no script but this one, by its hash."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    )
