"""Resolve the pins of each Python, and the hashes of all files of the pinned releases.

The pins are constraints for everyone. The hashes, one line for each release, are for `make setup`: it installs nothing
else. `--keep` keeps the pins that still fit, instead of the newest releases.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from setup import HASHES, PINS, ROOT, SetupError

PYTHONS = ("3.11", "3.12", "3.13")
COMPILE = (str(ROOT / ".venv" / "bin" / "uv"), "pip", "compile", "--quiet", "--all-extras", "--generate-hashes")


def resolve(python: str, *options: str) -> list[str]:
    """Write the constraints of a Python; return its pins, each in a line with its hashes."""
    target = ROOT / "constraints" / ("constraints-%s.txt" % python)
    command = [*COMPILE, "--python-version", python, "--constraint", str(PINS / "constraints.txt"), *options]
    command += ["--no-annotate", "--no-header", "-o", str(target), "pyproject.toml"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise SetupError("resolving %s failed:\n%s" % (target.name, done.stdout[-8000:].rstrip()))
    joined = target.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    hashed = [" ".join(line.split()) for line in joined]
    target.write_text("".join(line.partition(" ")[0] + "\n" for line in hashed), encoding="utf-8")
    return hashed


def main() -> None:
    """Resolve for all Pythons. Most pins are the same in all of them, and are written once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep the pins that still fit")
    options = () if parser.parse_args().keep else ("--upgrade",)
    lines: set[str] = set()
    for python in PYTHONS:
        print("constraints: Python " + python, flush=True)
        lines.update(resolve(python, *options))
    HASHES.write_text("".join(line + "\n" for line in sorted(lines)), encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except (SetupError, OSError) as error:
        sys.exit("constraints: %s" % error)
