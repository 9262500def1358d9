"""The programs of `tools` as modules: their folder is no package."""

import importlib.util
from pathlib import Path
from types import ModuleType


def load(program: Path) -> ModuleType:
    """Run a program's file as a new module, and return it."""
    spec = importlib.util.spec_from_file_location(f"{program.stem}_of_tools", program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
