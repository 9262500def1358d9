"""The built distributions: those in the folder that TASKQ_TEST_DIST names, as `make dist` does, or new ones."""

import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

FULL, CORE = "airflow-provider-taskq", "airflow-provider-taskq-core"


@dataclass(frozen=True)
class Distribution:
    """The two files of a distribution."""

    name: str
    wheel: Path
    sdist: Path

    def wheel_files(self) -> set[str]:
        """The files of the package in the wheel."""
        with zipfile.ZipFile(self.wheel) as archive:
            return {name for name in archive.namelist() if ".dist-info/" not in name}

    def wheel_info(self) -> dict[str, str]:
        """The texts of the metadata in the wheel, by file name."""
        with zipfile.ZipFile(self.wheel) as archive:
            found = [name for name in archive.namelist() if ".dist-info/" in name]
            return {name.partition("/")[2]: archive.read(name).decode() for name in found}

    def sdist_files(self) -> set[str]:
        """The files in the source distribution, without the name of its folder."""
        with tarfile.open(self.sdist) as archive:
            return {member.name.partition("/")[2] for member in archive if member.isfile()}


@pytest.fixture(scope="session")
def built(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Distribution]:
    """Both distributions by name. `python -m build` makes an sdist with the pinned backend, and the wheel from that."""
    if given := os.environ.get("TASKQ_TEST_DIST"):
        folder = Path(given)
    else:
        folder = tmp_path_factory.mktemp("dist")
        for source in (repository, repository / "tools/core"):
            command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return {name: _found(folder, name) for name in (FULL, CORE)}


def _found(folder: Path, name: str) -> Distribution:
    base = name.replace("-", "_")
    (wheel,) = folder.glob(f"{base}-[0-9]*.whl")
    (sdist,) = folder.glob(f"{base}-[0-9]*.tar.gz")
    return Distribution(name, wheel, sdist)
