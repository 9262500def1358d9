"""The command line in this process, on a database that is emptied for each test."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.cli.program import standalone
from tests.airflow.conftest import connection_json  # which gives Airflow a home before anything imports it

__all__ = ["connection_json"]

Run = Callable[..., Result]
Ask = Callable[..., Any]


@pytest.fixture
def run(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `taskq` with these words on the test's database; `code` is the exit code that is expected."""
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
    """The same with `--json`, and the document that it answers."""
    return lambda *words, code=0, stdin=None: json.loads(run(*words, "--json", code=code, stdin=stdin).stdout)
