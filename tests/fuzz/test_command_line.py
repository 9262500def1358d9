"""Hostile words of the command line: an answer or a message, never a traceback, and no change after a message."""

import threading
from collections import Counter
from collections.abc import Iterator
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, note
from hypothesis import strategies as st

from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.cli.program import standalone
from airflow_provider_taskq.queue import TaskQueue
from tests.fuzz.command_words import HANDLER, Words, all_words, uses_with
from tests.fuzz.inputs import FUZZ, INPUTS, LONGEST, MANY
from tests.fuzz.outcomes import StoredState, check_shares, limited_time
from tests.fuzz.situation import refill
from tests.queue.conftest import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.own_database,
    pytest.mark.promise("Any input is stored as it is, or refused with an error of the queue"),
    pytest.mark.promise("A command prints what it did or one line of error, as text or JSON"),
]

ODD = 2  # the exit code of click for words that it cannot use
# Signs of an error that does not refuse the words.
NO_REFUSAL = ("Traceback", "another version", "deadlock", "relation ")
IN_PARTS: set[tuple[str, ...]] = {("worker",)}  # commits in parts, and its exit code 1 says that tasks have failed
GROUPS = {("access",)}  # which do nothing without a subcommand
STDIN = st.one_of(
    st.none(),
    st.binary(max_size=50),
    st.sampled_from(
        [b"y\n", b'"new"\n', b'{"identifier": "new", "payload": [1]}\n\n"second"\n', b'{"identifier": 1}\n']
    ),
)


@pytest.fixture
def role(queue: TaskQueue) -> Iterator[str]:
    """A role of the server without access to the queue."""
    name = f"taskq_fuzz_{uuid4().hex[:8]}"
    queue.conn.execute(f"CREATE ROLE {name}".encode())
    yield name
    queue.conn.execute("SELECT taskq.revoke_access(%s)", (name,))
    queue.conn.execute(f"DROP ROLE {name}".encode())


def await_end(queue: TaskQueue, others: set[threading.Thread]) -> None:
    """Wait until no thread and no session of a worker is left: with a grace of 0 s it does not wait for them itself."""
    sessions = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'taskq%'"
    until(lambda: set(threading.enumerate()) <= others)
    until(lambda: not queue.conn.execute(sessions.encode()).rowcount)


def check_answer(given: Words, result: Result) -> None:
    """Fails for a traceback, and for a message that does not refuse the words."""
    assert result.exception is None or isinstance(result.exception, SystemExit), f"{given}: {result.exception!r}"
    assert result.exit_code in (0, 1, ODD)
    if result.exit_code:
        assert result.output.strip(), given
        assert not any(sign in result.output for sign in NO_REFUSAL), f"{given}: {result.output}"


@pytest.mark.parametrize(
    ("file", "stdin", "reason"), [("-", b"\x80", "not UTF-8"), ("/proc/self/mem", b"", "cannot read")]
)
@pytest.mark.parametrize("verb", ["push", "offer"])
def test_a_file_of_tasks_that_cannot_be_read_is_refused(
    dsn: str, state: StoredState, verb: str, file: str, stdin: bytes, reason: str
) -> None:
    result = CliRunner(env={"TASKQ_DSN": dsn}).invoke(
        standalone(), [verb, "work", "--file", file], input=stdin, obj=Session()
    )
    assert result.exit_code == 1
    assert reason in result.output
    state.check_unchanged()


@pytest.mark.usefixtures("queue")
def test_an_offer_of_an_empty_file_is_an_answer(dsn: str) -> None:
    words = ["offer", "work", "--file", "-"]
    result = CliRunner(env={"TASKQ_DSN": dsn}).invoke(standalone(), words, input="", obj=Session())
    assert (result.exit_code, result.output) == (0, "Offered 0 tasks to work.\n")


@pytest.mark.parametrize("host", ["a..b", "a" * 64], ids=["empty label", "long label"])
def test_a_host_that_cannot_be_one_is_refused_for_the_metrics(dsn: str, state: StoredState, host: str) -> None:
    words = ["worker", "--drain", HANDLER, "--topic", "work", "--metrics-port", "0", "--metrics-host", host]
    result = CliRunner(env={"TASKQ_DSN": dsn}).invoke(standalone(), words, obj=Session())
    check_answer(Words(("worker",), words), result)
    assert "cannot serve metrics" in result.output
    state.check_unchanged()


@pytest.mark.parametrize("value", ["\udc80", "a..b", "9" * 5_000], ids=["bytes", "host", "digits"])
def test_each_argument_and_option_with_a_hostile_value_gives_an_answer_or_a_message(
    dsn: str, queue: TaskQueue, value: str
) -> None:
    refill(queue)
    runner = CliRunner(env={"TASKQ_DSN": dsn})
    for use in uses_with(value):
        with limited_time():
            result = runner.invoke(standalone(), use.words, input="", prog_name="taskq", obj=Session())
        check_answer(use, result)


def test_any_words_give_an_answer_or_a_message(dsn: str, queue: TaskQueue, role: str, state: StoredState) -> None:
    commands, words = all_words({"role": st.just(role), "dsn": st.just(dsn)})
    bounded = {"TASKQ_DSN": dsn, "PGOPTIONS": f"-c statement_timeout={int(LONGEST.total_seconds())}s"}
    outcomes: Counter[bool] = Counter()
    answered: set[tuple[str, ...]] = set()
    others = set(threading.enumerate())  # other tests of this process may have left some

    def begin() -> None:
        refill(queue)
        state.remember()

    @FUZZ
    @given(given=words, stdin=STDIN)
    def check(given: Words, stdin: bytes | None) -> None:
        with limited_time():
            result = CliRunner(env=bounded).invoke(
                standalone(), given.words, input=stdin, prog_name="taskq", obj=Session(), auto_envvar_prefix="TASKQ"
            )
        note(f"{given.words}: {result.output:.500}")  # Hypothesis does not print words with lone surrogates
        check_answer(given, result)
        outcomes[result.exit_code == 0] += 1
        if result.exit_code == 0 and "--help" not in given.words:
            answered.add(given.command)
        if result.exit_code and given.command not in IN_PARTS:
            state.check_unchanged()
            return
        if given.command == ("worker",):
            await_end(queue, others)
        if state.changed_tables():
            queue.conn.execute("SELECT taskq.revoke_access(%s)", (role,))
            begin()

    begin()
    check()
    check_shares(outcomes)
    assert INPUTS < MANY or answered == commands - GROUPS
