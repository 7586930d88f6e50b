"""The frame that all our HTML pages share: one self-contained file with its style, its script and a security policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from vitreous.utils.atomic import atomic_file
from vitreous.utils.html import content_security_policy, text


@dataclass(frozen=True)
class Section:
    """A part of a page with its own heading and link. Sections without a body are left out."""

    id: str
    nav: str  # text of the link at the top
    title: str
    body: str  # HTML
    attributes: str = ""  # of the <section> tag


@dataclass(frozen=True)
class HtmlPage:
    """All parts of a page. Strings are HTML, except `title`, `kicker` and `heading`, which are plain text."""

    assets: str  # names of stylesheets and scripts in this folder, without the suffix, separated by spaces
    title: str
    kicker: str  # small line above the heading
    heading: str
    header: str
    sections: Sequence[Section]
    links: str = ""  # more links for the navigation
    before_main: str = ""
    data: str = ""  # <script> elements with data for the script
    scripts: bool = True  # the assets have scripts; otherwise only stylesheets


def render_page(page: HtmlPage) -> str:
    """The HTML document."""
    names = ("base", *page.assets.split())
    style = "".join(_asset(name, "css") for name in names)
    script = "".join(_asset(name, "js") for name in (names if page.scripts else names[:1]))
    sections = [section for section in page.sections if section.body]
    nav = "".join(f'<a href="#{section.id}">{section.nav}</a>' for section in sections)
    main = "".join(
        f'<section id="{section.id}"{section.attributes}><h2>{section.title}</h2>\n{section.body}</section>\n'
        for section in sections
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{content_security_policy(script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{text(page.title)}</title>
<style>{style}</style></head>
<body><header><p class="kicker">{text(page.kicker)}</p><h1 class="name">{text(page.heading)}</h1>
{page.header}<nav>{nav}{page.links}</nav></header>
{page.before_main}<main>
{main}</main>
<footer>Written by Vitreous. This page is a single file and loads nothing from the network.</footer>
{page.data}<script>{script}</script></body></html>
"""


def write_html(path: Path, html: str) -> None:
    """Write a page atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(html, encoding="utf-8")


def _asset(name: str, kind: str) -> str:
    return files("vitreous.reports").joinpath(f"{name}.{kind}").read_text("utf-8")
