"""Report words that make a sentence hard to read, in all text files that git tracks, or in the files given.

In tests it also reports the name of the private schema, which only tests/internals.py has.

The list is short on purpose, and each word has its reason. Quotations in Markdown (lines that start with `>`), the name
of the system account, CHANGELOG.md with its old names, the license and this file are left out.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".py", ".sql", ".md", ".js", ".html", ".css", ".toml", ".txt", ".ini", ".spec", ""}
LEFT_OUT = {"tools/core/LICENSE", "tools/words.py", "CHANGELOG.md", "LICENSE"}
NAME_THE_ACTOR = "name the actor: a worker, a poll, the driver, Airflow, a user"
REASONS = {
    "nobody": NAME_THE_ACTOR,
    "somebody": NAME_THE_ACTOR,
    "anybody": NAME_THE_ACTOR,
    "whoever": NAME_THE_ACTOR,
    "who": NAME_THE_ACTOR,
    "whom": NAME_THE_ACTOR,
    "anew": "write 'again' or 'new'",
    "begun": "write 'started'",
    "so many": "name the number: this many, N",
    "hence": "write 'so'",
    "thereby": "say what causes what",
    "therein": "write 'in it'",
    "hitherto": "write 'until now'",
    "lest": "write 'so that ... not'",
}
PRIVATE = "taskq_internal"
# Underscores separate words, so that the names of tests and functions are checked, too.
WORD = re.compile("(?<![a-zA-Z])(%s)(?![a-zA-Z])" % "|".join(map(re.escape, REASONS)), re.IGNORECASE)
ACCOUNT = re.compile("([\"'`])nobody\\1")


def tracked_files() -> list[Path]:
    """Return the text files that git tracks and that are to be checked."""
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = [name for name in listed.split("\0") if name and name not in LEFT_OUT]
    return [ROOT / name for name in names if Path(name).suffix in SUFFIXES and (ROOT / name).is_file()]


def find_words(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number of the line and the word, for each word of the list in a file."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if path.suffix == ".md" and line.lstrip().startswith(">"):
            continue
        for match in WORD.finditer(ACCOUNT.sub("", line)):
            yield number, match.group(1).lower()
        if PRIVATE in line and "tests" in path.parts and path.name != "internals.py":
            yield number, PRIVATE


def main() -> int:
    """Print the words that were found; return 1 if there are any."""
    found = False
    for path in [Path(name).resolve() for name in sys.argv[1:]] or tracked_files():
        for number, word in find_words(path):
            found = True
            name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
            reason = REASONS.get(word, "call a public verb, or a function of tests/internals.py")
            print("%s:%d: %r: %s" % (name, number, word, reason))
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
