"""What every page that we write has in common: text that stays text, and no script but its own."""

import base64
import hashlib
import re
from html import escape

UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def clean(value: object) -> str:
    """Anything as text that can be written."""
    return UNPRINTABLE.sub("\ufffd", str(value))


def text(value: object) -> str:
    """Anything as HTML that shows it, and does nothing else."""
    return escape(clean(value))


def policy(script: str) -> str:
    """What the browser itself keeps the page to: no network, and no script but this one, by its hash."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    )
