"""The files of this distribution: parts of the package of this repository. A source distribution has them inside."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "airflow_provider_taskq"
PARTS = ("__init__.py", "py.typed", "cli", "consumer", "queue", "worker")
LEFT_OUT = "cli/airflow.py"  # `airflow taskq`
SUFFIXES = (".py", ".sql", ".typed")


class ModulesHook(BuildHookInterface[Any]):
    """Adds the files to a wheel and to a source distribution; Hatchling's settings name none outside of this folder."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name each file with its place in the distribution. An editable installation has none: it uses the sources."""
        if version == "editable":
            return
        root = Path(self.root)
        package = next(folder / PACKAGE for folder in (root, root.parents[1]) if (folder / PACKAGE).is_dir())
        for part in PARTS:
            for path in [package / part, *sorted((package / part).rglob("*"))]:
                name = path.relative_to(package).as_posix()
                if path.is_file() and path.suffix in SUFFIXES and name != LEFT_OUT:
                    build_data["force_include"][str(path)] = f"{PACKAGE}/{name}"
