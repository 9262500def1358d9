"""The first screen of the README: what a newcomer types first."""

import os
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.promise("The examples, and the code of each page of this site, run as they are written")

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIRST_SCREEN = "\n".join(README.splitlines()[:45])
_BLOCK = re.compile(r"^```(?:text|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.documents
def test_the_queue_alone_works_as_the_first_screen_says(tmp_path: Path) -> None:
    """The lines are typed as they stand there, but the environment is in a folder of the test."""
    _, alone, in_that_shell, shown = _BLOCK.findall(FIRST_SCREEN)
    folder = tmp_path / "light"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TASKQ_", "PYTHON"))}
    done = subprocess.run(
        ["/bin/bash", "-ec", alone.replace(".venv-light", str(folder))],
        input=in_that_shell,
        cwd=ROOT,
        env={**environment, "SHELL": "/bin/sh"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert shown.splitlines()[-1].partition(" in ")[0] in done.stdout
    assert not list(folder.glob("lib/*/site-packages/*airflow_core*"))
