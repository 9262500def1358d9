"""The command line in this process, on a database that is empty at the start of each test."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.cli.program import standalone
from tests.airflow.conftest import connection_json  # it sets Airflow's home before the first import

__all__ = ["connection_json"]

Run = Callable[..., Result]
Ask = Callable[..., Any]


@pytest.fixture
def run(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `taskq` with arguments on the test's database; `code` is the expected exit code."""
    monkeypatch.setenv("TASKQ_DSN", dsn)

    def run(*words: object, code: int = 0, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(
            standalone(),
            [str(word) for word in words],
            input=stdin,
            prog_name="taskq",
            obj=Session(),
            auto_envvar_prefix="TASKQ",
        )
        assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
        return result

    return run


@pytest.fixture
def ask(run: Run) -> Ask:
    """Runs `taskq` with `--json`, and returns the document."""
    return lambda *words, code=0, stdin=None: json.loads(run(*words, "--json", code=code, stdin=stdin).stdout)
