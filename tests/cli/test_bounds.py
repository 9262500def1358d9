"""A value out of range is one line on stderr and exit code 2, never a traceback."""

import pytest

from airflow_provider_taskq.queue import TaskQueue
from tests.cli.conftest import Run
from tests.fuzz.command_words import Words, uses_with
from tests.internals import store_moments, stored_rows
from tests.queue.hostile import WRONG_DURATIONS, WRONG_INTEGERS, WRONG_MOMENTS, WRONG_NUMBERS, make_world

pytestmark = pytest.mark.promise("A command prints what it did or one line of error, as text or JSON")

TEXTS = ("a\x00b", "\udc80", "\ud800x")
WRONG: dict[str, tuple[str, ...]] = {  # by the name of a type
    "duration": WRONG_DURATIONS,
    "duration|none": WRONG_DURATIONS,
    "moment": (*WRONG_MOMENTS, "9999-12-31T23:59", "0001-01-01T00:00+14:00", "9999-12-31T23:59-12:00"),
    "integer range": WRONG_INTEGERS,
    "float": WRONG_NUMBERS,
    "topic": TEXTS,
}
# Options with other values: bounds of their own, or texts.
FURTHER: dict[tuple[str, ...], tuple[str, ...]] = {
    **dict.fromkeys([("push", "work", "new", "--delay"), ("push", "work", "new", "--ttl")], ("3651d",)),
    **dict.fromkeys(
        [("topics", "alter", "work", f"--{name}") for name in ("base", "max-delay", "horizon", "max-elapsed", "ttl")],
        ("3651d",),
    ),
    ("worker", "tests.cli.handlers:succeed", "--topic", "work", "--lease"): ("3651d",),
    ("ticks", "install", "work", "p", "--every"): ("3651d", "0s", "1ms"),
    ("ticks", "install", "work", "p", "--every", "1h", "--ahead"): ("3651d",),
    ("push", "work", "new", "--priority"): ("101", "-101"),
    ("topics", "alter", "work", "--factor"): ("0",),
    ("topics", "alter", "work", "--jitter"): ("1.1",),
    ("ls", "work", "--size"): ("0",),
    ("ls", "work", "--identifier"): TEXTS,
    ("ls", "work", "--error"): TEXTS,
    ("show", "work"): TEXTS,
    ("why", "work"): TEXTS,
    ("owners", "--search"): TEXTS,
    ("owners", "show"): TEXTS,
    ("push", "work", "new", "--reference"): TEXTS,
    ("push", "work"): TEXTS,
}


def check_refused(run: Run, queue: TaskQueue, uses: list[Words]) -> None:
    """Each use of the command line is one line on stderr, and changes nothing."""
    make_world(queue)
    before = stored_rows(queue.conn)
    for use in uses:
        refused = run(*use.words, code=2)
        lines = refused.stderr.splitlines()
        assert [line for line in lines if line.startswith("Error: ")] == lines[-1:], use.words
        assert "Traceback" not in refused.output
    assert stored_rows(queue.conn) == before


@pytest.mark.parametrize("kind", WRONG)
def test_a_value_out_of_range_is_one_line_and_exit_code_2(run: Run, queue: TaskQueue, kind: str) -> None:
    """For each argument and option of this type, of each command."""
    uses = [use for value in WRONG[kind] for use in uses_with(value, kind)]
    assert len({use.words[-2] for use in uses}) > 1
    check_refused(run, queue, uses)


@pytest.mark.parametrize("words", FURTHER, ids=" ".join)
def test_a_text_or_a_number_that_an_option_does_not_take_is_one_line_and_exit_code_2(
    run: Run, queue: TaskQueue, words: tuple[str, ...]
) -> None:
    check_refused(run, queue, [Words(words[:1], [*words, value]) for value in FURTHER[words]])


@pytest.mark.parametrize("value", ["infinity", "-infinity", "294276-01-01 00:00Z"])
def test_ls_lists_rows_with_moments_out_of_range(run: Run, queue: TaskQueue, value: str) -> None:
    world = make_world(queue)
    store_moments(queue.conn, value)
    for words in (
        *(("owners",), ("owners", "show", "owner"), ("topics",), ("ls", "retries"), ("stats",), ("ticks",)),
        *(("show", "retries", world.held), ("show", "retries", world.failed), ("why", "retries", world.waiting)),
    ):
        run(*words)
        run(*words, "--json")
