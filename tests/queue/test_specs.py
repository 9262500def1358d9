"""Interleavings of two and more sessions, from the specifications in tests/queue/interleavings."""

import re
from collections.abc import Callable, Iterator

import psycopg
import pytest

from airflow_provider_taskq.queue import TaskQueue
from tests.queue.conftest import deadlocks
from tests.queue.interleavings.runner import FOLDER, Permutation, Run, Session, parse, read_specs

pytestmark = pytest.mark.promise("A call that raises an error has changed nothing")

SPECS = read_specs()
VERBS = (FOLDER / "verbs.sql").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def monitor(server_dsn: str) -> Iterator[psycopg.Connection]:
    """A session that sees for which sessions the others wait."""
    with psycopg.connect(server_dsn, autocommit=True) as conn:
        yield conn


@pytest.fixture
def take(
    conn: psycopg.Connection, monitor: psycopg.Connection, open_queue: Callable[[], TaskQueue]
) -> Callable[[Permutation], None]:
    """Runs a permutation on an empty database."""

    def opened() -> Session:
        mine = open_queue().conn
        mine.autocommit = True
        return Session(mine, False)

    def take(permutation: Permutation) -> None:
        conn.execute(VERBS.encode())
        Run(conn, monitor, opened).take(permutation)

    return take


@pytest.mark.parametrize("name", SPECS, ids=list(SPECS))
def test_an_interleaving(take: Callable[[Permutation], None], conn: psycopg.Connection, name: str) -> None:
    ended = deadlocks(conn)
    take(SPECS[name])
    assert deadlocks(conn) == ended


HELD = """
setup
    topic('work')
    register('owner')
    push('a')
    poll('owner')

permutation one
    one   complete('owner', 'a')  -> 1
"""
WRONG = {
    "two complete('owner', 'a') -> 1: waits for one": "    two  complete('owner', 'a')  -> 1",
    "then states() -> a READY: gave a ACTIVE": "    then  states()  -> a READY",
    "then states() -> waits for one: gave a ACTIVE": "    then  states()  -> waits for one",
    "then states(NULL, 1): gave error UndefinedFunction": "    then  states(NULL, 1)",
    "-> error NotHeld: gave error LeaseLost": "    two  complete('owner', 'a', fence => 9)  -> error NotHeld",
    "a step has no result": "    two  complete('owner', 'a')  -> waits for one",
}


@pytest.mark.parametrize("message", WRONG)
def test_a_specification_that_states_another_result_or_wait_fails(
    take: Callable[[Permutation], None], message: str
) -> None:
    [permutation] = parse(HELD + WRONG[message] + "\n    one rollback")
    with pytest.raises(AssertionError, match=re.escape(message)):
        take(permutation)


def test_a_loop_makes_a_permutation_for_each_value_and_a_deeper_line_continues_a_step() -> None:
    one, two = parse(
        "permutation push {verb}s\n    for verb n in a 1, b 2\n    one  {verb}(\n        {n})  -> 1\n    one  commit"
    )
    assert (one.name, two.name, two.test) == ("push as [1]", "push bs [2]", "test_push_bs")
    assert [step.call for step in two.steps] == ["b( 2)", "commit"]
