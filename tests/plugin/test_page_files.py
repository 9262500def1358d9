"""The files of the page, which the browser runs without a build."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.promise("Hostile names, payloads and errors stay text")

WWW = Path(__file__).parents[2] / "airflow_provider_taskq" / "plugins" / "www"
MODULES = sorted(WWW.rglob("*.js"))
# Calls that could turn a text into markup or code.
MARKUP = re.compile(r"(?i:innerHTML)|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc")


def imports(module: Path) -> Iterator[Path]:
    """The modules that a module imports."""
    for found in re.findall(r"""(?:from|import\()\s*"([^"]+)\"""", module.read_text(encoding="utf-8")):
        assert found.startswith("."), f"{module.name} imports {found}, which no path serves"
        yield (module.parent / found).resolve()


def test_no_module_makes_markup_of_data() -> None:
    texts = {module.name: module.read_text(encoding="utf-8") for module in MODULES}
    assert [name for name, text in texts.items() if MARKUP.search(text)] == []


def test_every_module_is_loaded_from_the_one_that_airflow_loads() -> None:
    reached = {WWW / "taskq.js"}
    waiting = list(reached)
    while waiting:
        new = set(imports(waiting.pop())) - reached
        reached |= new
        waiting += new
    assert reached == set(MODULES)
