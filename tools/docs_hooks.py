"""Hooks of MkDocs: navigation, links to the repository, diagrams, and a guard against requests to other hosts."""

from __future__ import annotations

import logging
import posixpath
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^\s*(```+|~~~+)")
DIAGRAM = re.compile(r'<img [^>]*?src="([^":]+\.svg)"[^>]*>')
LINK = re.compile(r"(?<=\]\()(\.\./[^)\s#]*)(#[^)\s]*)?(?=\))")
log = logging.getLogger("mkdocs.hooks.taskq")  # a warning of a logger below `mkdocs` fails a strict build


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Replace each `folder/*` of the navigation by the pages of the folder that no other line names."""
    pages = {file.src_uri for file in files.documentation_pages()}
    listed = {entry for entry in _entries(config.nav) if not entry.endswith("*")}
    config.nav = _expand(config.nav or [], sorted(pages - listed, key=lambda page: _place(config, page)))


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links to files outside of docs/ to the repository on the web. Warn of a file that does not exist."""
    lines, fence = [], ""
    for line in markdown.splitlines():
        if mark := FENCE.match(line):
            fence = "" if mark[1] == fence else fence or mark[1]
        lines.append(line if fence else LINK.sub(lambda link: _repository_link(link, page), line))
    return "\n".join(lines) + "\n"


def on_page_content(html: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Put diagrams into the page, so that their colors follow its color scheme (docs/assets/site.css)."""
    return DIAGRAM.sub(lambda image: _inline_diagram(image, page, Path(config.docs_dir)), html)


def on_post_page(output: str, page: Page, **_: Any) -> None:
    """Warn if a browser would load a script, a style, a font or a picture from another host."""
    finder = _ResourceFinder()
    finder.feed(output)
    for url in finder.urls:
        log.warning("%s: the page would load %s from another host", page.file.src_uri, url)


def _entries(nav: Any) -> Iterator[str]:
    """Yield the pages and patterns of the navigation."""
    if isinstance(nav, str):
        yield nav
    elif nav:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from _entries(entry)


def _expand(nav: list[Any], unlisted: list[str]) -> list[Any]:
    """Return the navigation with pages for patterns. A section without pages is left out."""
    expanded: list[Any] = []
    for entry in nav:
        if isinstance(entry, str):
            expanded += [page for page in unlisted if _is_below(page, entry)] if entry.endswith("*") else [entry]
            continue
        for title, below in entry.items():
            pages = _expand(below, unlisted) if isinstance(below, list) else below
            if pages:
                expanded.append({title: pages})
    return expanded


def _is_below(page: str, pattern: str) -> bool:
    """Return whether a page is in the folder of a pattern, and not in a folder below it."""
    return fnmatchcase(page, pattern) and page.count("/") == pattern.count("/")


def _place(config: MkDocsConfig, page: str) -> tuple[bool, str]:
    """Return the place of a page among the pages of its folder: index.md, then the others by their heading."""
    lines = Path(config.docs_dir, page).read_text(encoding="utf-8").splitlines()
    return not page.endswith("index.md"), next((line for line in lines if line.startswith("# ")), page).casefold()


def _repository_link(link: re.Match[str], page: Page) -> str:
    """Return the address of a file outside of docs/; a link within docs/ stays as it is."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), link[1]))
    if path.startswith("docs/"):
        return link[0]
    target = ROOT / path
    if path.startswith("..") or not target.exists():
        log.warning("%s: there is no %s in the repository", page.file.src_uri, path)
    return f"{_source_url()}/{'tree' if target.is_dir() else 'blob'}/main/{path}{link[2] or ''}"


def _inline_diagram(image: re.Match[str], page: Page, docs: Path) -> str:
    """Return the SVG of an image, in a frame that scrolls on a narrow screen."""
    file = docs / posixpath.normpath(posixpath.join(page.url, image[1]))
    return f'<span class="diagram-frame">{file.read_text(encoding="utf-8")}</span>'


@cache
def _source_url() -> str:
    """Return the address of the repository on the web."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["urls"]["Source"]).rstrip("/")


class _ResourceFinder(HTMLParser):
    """Collects the addresses on other hosts that a browser loads to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Look at one tag."""
        given = dict(attrs)
        loads = tag in {"script", "img", "iframe", "source", "video", "audio"}
        if tag == "link":
            loads = (given.get("rel") or "") not in {"canonical", "next", "prev", "alternate"}
        url = given.get("href" if tag == "link" else "src") or ""
        if loads and url.startswith(("http:", "https:", "//")):
            self.urls.append(url)
