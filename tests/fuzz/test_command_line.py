"""Hostile words of the command line: an answer or a message, never a traceback."""

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.cli.program import VERBS, standalone
from airflow_provider_taskq.queue import TaskQueue
from tests.fuzz.inputs import FUZZ, LONGEST, TEXTS, WHOLE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

# Commands that end by themselves, and do not change the installation.
ENDLESS = {"worker", "watch"}
SCHEMA = {"install", "upgrade", "uninstall", "access", "doctor", "sql", "verify", "completion"}
COMMANDS = st.sampled_from(sorted(set(VERBS) - ENDLESS - SCHEMA))
OPTIONS = st.sampled_from(
    ["--json", "--topic", "--state", "--identifier", "--size", "--limit", "--since", "--until", "--yes", "--payload",
     "--delay", "--ttl", "--priority", "--at", "--reference", "--all", "--file", "--help", "--sequence", "--error"]
)  # fmt: skip
WORDS = st.one_of(
    st.just("work"), OPTIONS, TEXTS, WHOLE.map(str), st.sampled_from(["1h", "2026-13-01", "@9", "FAILED"])
)
ODD = 2  # the exit code of click for words that it cannot use


@FUZZ
@given(command=COMMANDS, words=st.lists(WORDS, max_size=5), stdin=st.one_of(st.none(), st.binary(max_size=50)))
def test_any_words_give_an_answer_or_a_message(
    dsn: str, queue: TaskQueue, command: str, words: list[str], stdin: bytes | None
) -> None:
    bounded = {"TASKQ_DSN": dsn, "PGOPTIONS": f"-c statement_timeout={int(LONGEST.total_seconds())}s"}
    result = CliRunner(env=bounded).invoke(
        standalone(), [command, *words], input=stdin, prog_name="taskq", obj=Session(), auto_envvar_prefix="TASKQ"
    )
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code in (0, 1, ODD)
    assert "Traceback" not in result.output
    assert result.exit_code == 0 or result.output.strip()
    assert queue.topics() == ["work"]
