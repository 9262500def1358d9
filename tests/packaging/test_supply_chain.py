"""What a contributor installs, and what the package never does with data."""

import ast
import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest

from tests.packaging.conftest import FULL
from tests.programs import load

pytestmark = pytest.mark.promise("A release belongs to its tag, its changelog and its schema")

# Modules that make objects of any class from bytes or text, and functions that run text.
DANGER = re.compile(
    r"\b(_?pickle|cloudpickle|dill|marshal|shelve|jsonpickle|joblib|yaml|read_pickle|popen|__import__)\b"
    r"|(?<![.\w])(eval|exec|compile)\(|\bos\.(system)|\b(shell)=(?!False)"
)
# Functions of the program itself: a check of what Spark sends to its executors, and in pipes to its own children.
DOCUMENTED = {("spark/composite.py", "cloudpickle"), ("worker/processes.py", "pickle")}


@pytest.fixture
def setup(repository: Path) -> ModuleType:
    """`tools/setup.py`, which `make setup` runs."""
    return load(repository / "tools" / "setup.py")


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_every_pinned_release_has_the_hashes_of_its_files(python: str, setup: ModuleType, repository: Path) -> None:
    pins = repository / "constraints" / f"constraints-{python}.txt"
    lines = setup.hashed(pins).splitlines()
    assert [line.split()[0] for line in lines] == pins.read_text(encoding="utf-8").split()
    assert all(word.startswith("--hash=sha256:") for line in lines for word in line.split()[1:])
    assert all(len(line.split()) > 1 for line in lines)


def wheel(folder: Path, content: str) -> Path:
    """A wheel of the distribution `pinned` 1.0."""
    path = folder / "pinned-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pinned.py", content)
        archive.writestr("pinned-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: pinned\nVersion: 1.0\n")
        archive.writestr("pinned-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("pinned-1.0.dist-info/RECORD", "")
    return path


@pytest.mark.parametrize("exchanged", [False, True])
def test_setup_refuses_a_file_that_was_exchanged_under_the_same_version(
    exchanged: bool, setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = hashlib.sha256(wheel(tmp_path, "value = 1").read_bytes()).hexdigest()
    if exchanged:
        wheel(tmp_path, "value = 2")
    pins = tmp_path / "constraints-{}.{}.txt".format(*sys.version_info[:2])
    pins.write_text("pinned==1.0\n", encoding="utf-8")
    hashes = tmp_path / "hashes.txt"
    hashes.write_text(f"pinned==1.0 --hash=sha256:{known}\n", encoding="utf-8")
    monkeypatch.setattr(setup, "HASHES", hashes)
    monkeypatch.setattr(setup, "REQUIREMENTS", tmp_path / "requirements.txt")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "installed"))
    if exchanged:
        with pytest.raises(setup.SetupError, match="DO NOT MATCH THE HASHES"):
            setup.install_pinned(sys.executable, pins)
        assert not (tmp_path / "installed").exists()
    else:
        setup.install_pinned(sys.executable, pins)
        assert (tmp_path / "installed" / "pinned.py").read_text(encoding="utf-8") == "value = 1"


def code(source: str) -> str:
    """A source without its comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = 0
    return ast.unparse(tree)


@pytest.mark.promise("The package never runs data as code")
def test_no_module_runs_data_as_code(repository: Path) -> None:
    package = repository / FULL.replace("-provider-", "_provider_").replace("-", "_")
    sources = {str(path.relative_to(package)): path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    found = {(name, word) for name, text in sources.items() for words in DANGER.findall(code(text)) for word in words}
    assert {(name, word) for name, word in found if word} == DOCUMENTED


def test_every_pinned_release_is_audited(repository: Path) -> None:
    recipe = (repository / "Makefile").read_text(encoding="utf-8").partition("\ndefine AUDIT")[2]
    patterns = recipe.partition("for pins in ")[2].partition(";")[0].split()
    command = ["git", "ls-files", "*.txt"]
    listed = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip(f"not a checkout of git: {listed.stderr.strip()}")

    def pins(paths: Iterable[Path]) -> set[str]:
        lines = {line.partition(" ")[0] for path in paths for line in path.read_text(encoding="utf-8").splitlines()}
        return {line for line in lines if re.fullmatch(r"[\w.\[\]-]+==[\w.]+", line)}

    audited = pins(path for pattern in patterns for path in repository.glob(pattern))
    assert pins(repository / name for name in listed.stdout.split()) - audited == set()
