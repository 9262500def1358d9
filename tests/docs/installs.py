"""The install commands of all pages. Until a release exists they run in a clone, and afterwards anywhere."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (*ROOT.glob("*.md"), ROOT / "constraints" / "README.md", ROOT / "tools" / "core" / "README.md")
PAGES += tuple(sorted((ROOT / "docs").rglob("*.md")))

# Whether a release exists: CHANGELOG.md has the date of one. The commit of a release has the commands of its page
# on the package index.
RELEASED = bool(re.search(r"^## \[[^\]]+\] - \d", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE))

NAMES = {".": "airflow-provider-taskq", "./tools/core": "airflow-provider-taskq-core"}  # by the folder in a clone
INSTALL = re.compile(r"^ *(pip install .+?)(?: +#.*)?$\n?", re.MULTILINE)  # of a block
_FENCE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`]+)`")
_WORD = re.compile(r"""(?<!\S)(['"]?)([^\s'"]+)\1(?!\S)""")


def install_commands(text: str) -> Iterator[str]:
    """Yield each command of a page that installs something, in its blocks and its sentences."""
    blocks = "\n".join(block[0] for block in _FENCE.finditer(text))
    for found in (*INSTALL.finditer(blocks), *_INLINE.finditer(_FENCE.sub("", text))):
        command = " ".join(found[1].split())
        words = shlex.split(command) if command.startswith("pip install ") else []
        if any(not word.startswith("-") for word in words[2:]):
            yield command


def correction(command: str) -> str:
    """Return a command with our distributions named as they have to be now: by folder, or by name after a release.

    An editable installation always names a folder.
    """
    if "--editable" in command:
        return command
    wanted = NAMES if RELEASED else {name: folder for folder, name in NAMES.items()}

    def replace(word: re.Match[str]) -> str:
        name, bracket, extras = word[2].partition("[")
        return shlex.quote(wanted[name] + bracket + extras) if name in wanted else word[0]

    return _WORD.sub(replace, command)
