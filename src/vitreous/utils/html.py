"""HTML pages: escaping of text, and a Content-Security-Policy that allows only the page's own script."""

import base64
import hashlib
from html import escape

from vitreous.utils.console import printable


def clean(value: object) -> str:
    """Return a value as text without control characters."""
    return printable(value, keep="\t\n")


def text(value: object) -> str:
    """Return a value as escaped HTML."""
    return escape(clean(value))


def content_security_policy(script: str) -> str:
    """Return a policy that forbids network access and all scripts except this one, which is allowed by its hash."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    )


def image_url(data: bytes, kind: str) -> str:
    """Return the bytes of an image file ("png" or "jpeg") as a data URL."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
