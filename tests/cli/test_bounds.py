"""A value out of range is one line on stderr and exit code 2, never a traceback."""

import pytest

from airflow_provider_taskq.queue import TaskQueue
from tests.cli.conftest import Run
from tests.internals import store_moments, stored_rows
from tests.queue.test_bounds import make_world

pytestmark = pytest.mark.promise("A command prints what it did or one line of error, as text or JSON")

DURATIONS = ("99999999d", "9" * 400 + "d", "1e999", "-5m", "nan", "inf", "", "\x00", "\udc80", "365001d")
MOMENTS = (
    *DURATIONS,
    "0000-01-01",
    "10000-01-01",
    "9999-12-31T23:59",
    "0001-01-01T00:00+14:00",
    "9999-12-31T23:59-12:00",
)
INTEGERS = ("-1", "1e999", "99999999999999999999", "9" * 5000, "1.5", "nan", "", "\x00", "\udc80")
SIZES = (*INTEGERS, "0")
NUMBERS = ("nan", "inf", "-inf", "1e999", "-1", "", "\x00")
TEXTS = ("a\x00b", "\udc80", "\ud800x")

VERBS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ls --since": (("ls", "work", "--since"), MOMENTS),
    "ls --until": (("ls", "work", "--until"), MOMENTS),
    "ls --size": (("ls", "work", "--size"), SIZES),
    "ls --after": (("ls", "work", "--after"), INTEGERS),
    "ls --identifier": (("ls", "work", "--identifier"), TEXTS),
    "ls --error": (("ls", "work", "--error"), TEXTS),
    "ls TOPIC": (("ls",), TEXTS),
    "show": (("show", "work"), TEXTS),
    "why": (("why", "work"), TEXTS),
    "owners --size": (("owners", "--size"), SIZES),
    "owners --after": (("owners", "--after"), INTEGERS),
    "owners --search": (("owners", "--search"), TEXTS),
    "owners show": (("owners", "show"), TEXTS),
    "owners show --size": (("owners", "show", "owner", "--size"), SIZES),
    "owners purge": (("owners", "purge", "--older-than"), DURATIONS),
    "expire": (("expire", "--grace"), DURATIONS),
    "health": (("health", "--patience"), DURATIONS),
    "doctor": (("doctor", "--patience"), DURATIONS),
    "purge --before": (("purge", "work", "--yes", "--state", "READY", "--before"), MOMENTS),
    "purge --from": (("purge", "work", "--yes", "--state", "READY", "--from"), INTEGERS),
    "purge --to": (("purge", "work", "--yes", "--state", "READY", "--to"), INTEGERS),
    "retry --size": (("retry", "retries", "--yes", "--state", "SUSPENDED", "--size"), SIZES),
    "retry --since": (("retry", "retries", "--yes", "--state", "SUSPENDED", "--since"), MOMENTS),
    "reassign --until": (
        ("reassign", "retries", "--yes", "--state", "FAILED", "--result", "SUCCESS", "--until"),
        MOMENTS,
    ),
    "push --delay": (("push", "work", "new", "--delay"), (*DURATIONS, "3651d")),
    "push --ttl": (("push", "work", "new", "--ttl"), (*DURATIONS, "3651d")),
    "push --at": (("push", "work", "new", "--at"), MOMENTS),
    "push --priority": (("push", "work", "new", "--priority"), ("101", "-101", *INTEGERS[1:])),
    "push --reference": (("push", "work", "new", "--reference"), TEXTS),
    "push IDENTIFIER": (("push", "work"), TEXTS),
    "ticks --every": (("ticks", "install", "work", "p", "--every"), (*DURATIONS, "3651d", "0s", "1ms")),
    "ticks --ahead": (("ticks", "install", "work", "p", "--every", "1h", "--ahead"), (*DURATIONS, "3651d")),
    "topics --base": (("topics", "alter", "work", "--base"), (*DURATIONS, "3651d")),
    "topics --max-delay": (("topics", "alter", "work", "--max-delay"), (*DURATIONS, "3651d")),
    "topics --horizon": (("topics", "alter", "work", "--horizon"), (*DURATIONS, "3651d")),
    "topics --max-elapsed": (("topics", "alter", "work", "--max-elapsed"), (*DURATIONS, "3651d")),
    "topics --ttl": (("topics", "alter", "work", "--ttl"), (*DURATIONS, "3651d")),
    "topics --factor": (("topics", "alter", "work", "--factor"), (*NUMBERS, "0")),
    "topics --jitter": (("topics", "alter", "work", "--jitter"), (*NUMBERS, "1.1")),
    "topics --max-attempts": (("topics", "alter", "work", "--max-attempts"), SIZES),
    "topics --max-crashes": (("topics", "alter", "work", "--max-crashes"), SIZES),
    "topics --max-payload-bytes": (("topics", "alter", "work", "--max-payload-bytes"), INTEGERS),
    "watch --interval": (("watch", "--looks", "1", "--interval"), DURATIONS),
    "watch --looks": (("watch", "--looks"), SIZES),
    "worker --lease": (("worker", "tests.cli.handlers:succeed", "--topic", "work", "--lease"), (*DURATIONS, "3651d")),
    "worker --size": (("worker", "tests.cli.handlers:succeed", "--topic", "work", "--size"), SIZES),
    "worker --threads": (("worker", "tests.cli.handlers:succeed", "--topic", "work", "--threads"), SIZES),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_value_out_of_range_is_one_line_and_exit_code_2(run: Run, queue: TaskQueue, verb: str) -> None:
    words, values = VERBS[verb]
    make_world(queue)
    before = stored_rows(queue.conn)
    for value in values:
        refused = run(*words, value, code=2)
        lines = refused.stderr.splitlines()
        assert [line for line in lines if line.startswith("Error: ")] == lines[-1:], value
        assert "Traceback" not in refused.output
    assert stored_rows(queue.conn) == before


@pytest.mark.parametrize("value", ["infinity", "-infinity", "294276-01-01 00:00Z"])
def test_ls_lists_rows_with_moments_out_of_range(run: Run, queue: TaskQueue, value: str) -> None:
    world = make_world(queue)
    store_moments(queue.conn, value)
    for words in (
        ("owners",),
        ("owners", "show", "owner"),
        ("topics",),
        ("ls", "retries"),
        ("show", "retries", world.held),
        ("show", "retries", world.failed),
        ("why", "retries", world.waiting),
        ("stats",),
        ("ticks",),
        ("watch", "--looks", "1"),
    ):
        run(*words)
        run(*words, "--json")
