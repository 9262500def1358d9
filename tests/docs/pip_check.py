"""Program in the place of `pip`: checks what a page would install, and installs nothing.

A requirement is this checkout, this distribution with extras that it has, or a distribution that is installed.
"""

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OWN = {PROJECT["name"], PROJECT["name"] + "-core", "."}
REQUIREMENT = re.compile(r"(\.|[A-Za-z0-9][\w.-]*?)(?:\[([\w,-]+)\])?(?:[<>=!~]=?.*)?")


def check(requirement: str) -> str | None:
    """Return what is wrong with a requirement."""
    found = REQUIREMENT.fullmatch(requirement)
    if not found:
        return f"invalid requirement {requirement!r}"
    if found[1] in OWN:
        unknown = set(filter(None, (found[2] or "").split(","))) - set(PROJECT["optional-dependencies"])
        return f"{found[1]} has no extra {', '.join(sorted(unknown))}" if unknown else None
    try:
        distribution(found[1])
    except PackageNotFoundError:
        return f"{found[1]} is not installed where the pages are tested"
    return None


def main() -> str | None:
    """Check the arguments of `pip install`."""
    command, *arguments = sys.argv[1:]
    if command != "install":
        return f"pip {command} is not part of any page"
    requirements = []
    while arguments:
        argument = arguments.pop(0)
        if argument in ("-c", "--constraint", "--target"):
            arguments.pop(0)
        elif not argument.startswith("-"):
            requirements.append(argument)
    return "\n".join(filter(None, map(check, requirements))) or (None if requirements else "nothing to install")


if __name__ == "__main__":
    sys.exit(main())
