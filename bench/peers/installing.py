"""Installs the peers: virtual environments and a node_modules outside the repository, made when needed."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.peers.specs import Spec

HERE = Path(__file__).parent
PINS = HERE / "pins.txt"
PACKAGE = HERE / "package.json"
CANDIDATES = ("python3.13", "python3.12", "python3")
OLDEST = (3, 12)  # what all peers run on
NODE = 20


class NotInstalledError(Exception):
    """Why a peer is left out, in one sentence."""


def default_cache() -> Path:
    """The folder that peers are kept in, so that the next run finds them."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "taskq-bench"


def command_of(spec: Spec, cache: Path) -> tuple[list[str], dict[str, str]]:
    """Installs a peer if necessary; returns the command and the environment of its program."""
    if spec.needs_file and not Path(os.environ.get(spec.needs_file, "")).is_file():
        raise NotInstalledError(f"the variable {spec.needs_file} does not name its SQL file.")
    if spec.script.endswith(".js"):
        return [_node(), str(HERE / spec.script)], {"NODE_PATH": str(_node_modules(cache))}
    python = environment(cache / spec.package, _python(), spec.requires)
    return [str(python), "-m", f"bench.peers.{Path(spec.script).stem}"], {}


def environment(folder: Path, base: str, requires: Sequence[str]) -> Path:
    """The Python of a virtual environment with packages; makes the environment if it is missing or has others."""
    python, stamp = folder / "bin" / "python", folder / "pins.txt"
    wanted = PINS.read_text(encoding="utf-8") + " ".join(requires)
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    _run([base, "-m", "venv", str(folder)], f"{folder.name}: no virtual environment could be made")
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", str(PINS)]
    _run([*install, *requires], f"{folder.name} could not be installed")
    stamp.write_text(wanted, encoding="utf-8")
    return python


def _node_modules(cache: Path) -> Path:
    folder = cache / "node"
    copy = folder / "package.json"
    stamp = folder / "complete"
    if not (stamp.exists() and copy.read_bytes() == PACKAGE.read_bytes()):
        stamp.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(PACKAGE, copy)
        npm = shutil.which("npm")
        if npm is None:
            raise NotInstalledError("The peers on Node need npm, and there is none on the PATH.")
        _run([npm, "install", "--silent", "--no-package-lock"], "The peers on Node could not be installed", folder)
        stamp.touch()
    return folder / "node_modules"


def _node() -> str:
    node = shutil.which("node")
    if node is None:
        raise NotInstalledError("The peers on Node need Node 20 or newer, and there is none on the PATH.")
    found = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    if int(found.lstrip("v").split(".")[0] or 0) < NODE:
        raise NotInstalledError(f"The peers on Node need Node {NODE} or newer; the one on the PATH is {found}.")
    return node


def _python() -> str:
    """A Python for all peers alike: one of the PATH, or of pyenv, that is new enough for the most demanding."""
    if given := os.environ.get("TASKQ_BENCH_PYTHON"):
        return given
    kept = sorted((Path.home() / ".pyenv" / "versions").glob("3.1[23].*/bin/python"), reverse=True)
    for candidate in (sys.executable, *filter(None, map(shutil.which, CANDIDATES)), *map(str, kept)):
        probe = f"import sys, venv, ensurepip; raise SystemExit(sys.version_info < {OLDEST})"
        if not subprocess.run([candidate, "-c", probe], capture_output=True, check=False).returncode:
            return candidate
    raise NotInstalledError(
        "The peers on Python need Python {}.{} or newer; name one by TASKQ_BENCH_PYTHON.".format(*OLDEST)
    )


def _run(command: list[str], problem: str, folder: Path | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NotInstalledError(f"{problem}: {said[-1] if said else 'no output'}")
