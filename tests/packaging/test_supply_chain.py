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

# Modules that make objects of any class from bytes or text, and the module that has eval() by another name.
MODULES = {"pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "jsonpickle", "joblib", "yaml", "builtins"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
METHODS = {"eval", "exec", "read_pickle", "unsafe_load", "system", "popen", "getoutput", "getstatusoutput"}
# Functions of the program itself, in its own process and in Spark's commit messages from its executors.
DOCUMENTED = {("spark/composite.py", "cloudpickle"), ("spark/driver_commit.py", "cloudpickle")}


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


def dangers(source: str) -> set[str]:
    """The names in a source by which Python runs data as code, whether the source calls them or only passes them on."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found |= MODULES & {part for alias in names for part in alias.name.split(".")}
            case ast.ImportFrom(module=module, names=names):
                found |= MODULES & set((module or "").split("."))
                found |= (MODULES | METHODS) & {alias.name for alias in names}
            case ast.Name(id=name):
                found |= (BUILTINS | {"__builtins__"}) & {name}
            case ast.Attribute(attr=name):
                found |= (MODULES | METHODS) & {name}
            case ast.Constant(value=str(name)):  # import_module("pickle"), getattr(module, "eval")
                found |= (MODULES - {"builtins"} | BUILTINS) & {name}
            case ast.keyword(arg="shell", value=ast.Constant(value=False)):
                pass
            case ast.keyword(arg="shell"):
                found.add("shell")
    return found


@pytest.mark.promise("The package never runs data as code")
def test_no_module_runs_data_as_code(repository: Path) -> None:
    package = repository / FULL.replace("-provider-", "_provider_").replace("-", "_")
    sources = {str(path.relative_to(package)): path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    assert {(name, danger) for name, source in sources.items() for danger in dangers(source)} == DOCUMENTED


@pytest.mark.parametrize(
    ("source", "danger"),
    [
        ("import pickle\npickle.loads(data)", "pickle"),
        ("eval(text)", "eval"),
        ("getattr(module, 'eval')(text)", "eval"),
        ("subprocess.run(text, shell=True)", "shell"),
        ("os.popen(text)", "popen"),
    ],
)
def test_each_way_to_run_data_as_code_is_found(source: str, danger: str) -> None:
    assert danger in dangers(source)


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
