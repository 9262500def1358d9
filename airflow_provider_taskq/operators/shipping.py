"""This package as a file that Spark sends to executors which have not installed it."""

from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import airflow_provider_taskq

PACKAGE = Path(airflow_provider_taskq.__file__).parent
PARTS = ("queue", "worker", "spark")


def ship(folder: Path) -> Path:
    """Writes the parts that Spark's processes need, for --py-files, and returns the file.

    psycopg and pyarrow are not in it: they are compiled, and have to be installed where executors run.
    """
    file = folder / "airflow_provider_taskq.zip"
    with ZipFile(file, "w", ZIP_DEFLATED) as archive:
        for source in (PACKAGE / "__init__.py", *_sources()):
            archive.write(source, Path(PACKAGE.name) / source.relative_to(PACKAGE))
    return file


def _sources() -> list[Path]:
    """The modules and statements of those parts."""
    found = (path for part in PARTS for path in sorted((PACKAGE / part).rglob("*")))
    return [path for path in found if path.suffix in (".py", ".sql")]
