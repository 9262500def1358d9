"""Links of the Markdown files outside of docs/ lead to files and headings that exist. The site checks its own."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [*ROOT.glob("*.md"), ROOT / "constraints" / "README.md", ROOT / "tools" / "core" / "README.md"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_the_links_of_a_file_lead_somewhere(file: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", file.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = (file.parent / path).resolve() if path else file
        if ":" not in path and not (target.exists() and (not anchor or anchor in anchors(target))):
            broken.append(link)
    assert broken == []


def anchors(file: Path) -> set[str]:
    """The anchors of a file's headings."""
    headings = re.findall(r"^#+ (.+?)(?: \{ *#([\w-]+) *\})?$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {given or re.sub(r"[^\w\s-]", "", title).strip().lower().replace(" ", "-") for title, given in headings}
