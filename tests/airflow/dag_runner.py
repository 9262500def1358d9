"""Runs DAGs by `dag.test()` in a process of their own, whose Airflow has a database of its own."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.airflow.conftest import connection_json

REPOSITORY = Path(__file__).parents[2]


def run_dags(
    home: Path, dsn: str, files: Iterable[Path], *dag_ids: str, settings: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Run DAGs of these files, one after the other.

    Return the stored XComs and events (see dag_runner_program.py), and the output.
    """
    dags = home / "dags"
    dags.mkdir()
    for file in files:
        shutil.copy(file, dags)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "1",
        "AIRFLOW_CONN_TASKQ_DEFAULT": connection_json(dsn),
        **settings,
    }
    program = [sys.executable, "-m", "tests.airflow.dag_runner_program", *dag_ids]
    result = subprocess.run(program, env=environment, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    (line,) = [each for each in result.stdout.splitlines() if each.startswith('{"import_errors"')]  # Spark may say more
    report: dict[str, Any] = json.loads(line)
    return {**report, "output": result.stdout + result.stderr}
