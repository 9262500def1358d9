"""Growth: the cost of a call depends on its own tasks, not on the number of other tasks in the tables.

The tables are never analyzed, and the measured session has planned its statements while they held a few rows.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    Insertion,
    Junction,
    NewTask,
    Result,
    Revival,
    State,
    Task,
    TaskQueue,
    connect,
)
from tests.internals import stop_autovacuum
from tests.queue.explained import explain
from tests.queue.test_plans import database

pytestmark = pytest.mark.promise("The cost of a call does not grow with the other tasks of the queue")

Call = Callable[["Grown"], object]
Push = Callable[[TaskQueue, str, int], None]
HOUR = timedelta(hours=1)
SIZE = 10  # tasks that a call is about
SMALL, LARGE = 200, 1600  # tasks of each kind besides the measured ones
ENDS = {"failed": Result.FAILURE, "suspended": Result.SUSPENSION, "done": Result.SUCCESS}


class Grown:
    """A topic with tasks of all kinds that grows between the measured calls of one session."""

    def __init__(self, queue: TaskQueue, filler: TaskQueue) -> None:
        self.queue, self.filler = queue, filler
        self.owner = queue.register("measured", HOUR)
        self.other = queue.register("other", HOUR)
        self.kinds: dict[str, list[int]] = {kind: [] for kind in (*ENDS, "held", "ready", "waiting")}

    def grow(self, size: int) -> None:
        """Adds tasks of each kind until there are `size` of each."""
        for kind, sequences in self.kinds.items():
            names = [f"{kind}-{number}" for number in range(len(sequences), size)]
            depends = [("on", "never")] if kind == "waiting" else []
            stays = kind in ("ready", "waiting")
            tasks = [NewTask(name, depends_on=depends, priority=0 if stays else 1) for name in names]
            sequences.extend(task.sequence for task in self.filler.push("work", tasks))
            if not stays:
                held = self.filler.poll("work", self.other, len(names))
                assert {task.sequence for task in held} <= set(sequences)
            if kind in ENDS:
                self.filler.complete(self.other, dict.fromkeys(held, ENDS[kind]))

    def names(self, kind: str) -> list[str]:
        """The identifiers of the first tasks of a kind."""
        return [f"{kind}-{number}" for number in range(SIZE)]

    def some(self, kind: str) -> list[int]:
        """The sequences of the first tasks of a kind."""
        return self.kinds[kind][:SIZE]

    def complete(self, decision: Decision) -> None:
        """Completes some of the tasks that the other owner holds, which are all of the kind `held`."""
        self.queue.complete(self.other, dict.fromkeys(self.some("held"), decision))

    def visited(self, call: Call) -> int:
        """The rows that a call visits. The call is undone."""
        with self.queue.conn.transaction(force_rollback=True):
            return explain(self.queue.conn, lambda: call(self)).visited


def push(insertion: Insertion, kind: str) -> Call:
    """Pushes identifiers that the topic has."""
    return lambda grown: grown.queue.push("work", grown.names(kind), insertion)


def poll(condition: Condition) -> Call:
    """Polls under a condition."""
    return lambda grown: grown.queue.poll("work", grown.owner, SIZE, condition=condition)


def revive(revival: Revival, kind: str) -> Call:
    """Revives by sequences."""
    return lambda grown: grown.queue.revive("work", revival=revival, sequences=grown.some(kind))


CALLS: dict[str, Call] = {
    **{
        f"{insertion.name} of {kind} tasks": push(insertion, kind)
        for insertion in (Insertion.SUPERSEDE, Insertion.REPLACE, Insertion.DELETE)
        for kind in ("ready", "waiting", "done", "held")
    },
    "push with dependencies": lambda grown: grown.queue.push(
        "work", [NewTask(f"new-{name}", depends_on=[("work", name)]) for name in grown.names("done")]
    ),
    "poll": poll(Condition.NONE),
    "poll of groups": lambda grown: grown.queue.poll_batch("work", grown.owner, SIZE),
    "claim": lambda grown: grown.queue.claim("work", grown.owner, SIZE),
    "claim of identifiers": lambda grown: grown.queue.conn.execute(
        "SELECT taskq.claim_batch('work', %s, %s, %s, 'SINGULAR_BY_IDENTIFIER')",
        (grown.owner.name, grown.owner.fence, SIZE),
    ),
    "ready": lambda grown: grown.queue.ready("work", SIZE),
    "complete": lambda grown: grown.complete(Decision(Result.SUCCESS)),
    "complete with failures": lambda grown: grown.complete(Decision(Result.FAILURE)),
    "complete with a delay": lambda grown: grown.complete(Decision(Result.SUSPENSION, delay=HOUR)),
    "exchange": lambda grown: grown.queue.exchange(
        grown.other, dict.fromkeys(grown.some("held"), Result.SUCCESS), "work", SIZE
    ),
    "revive by RESET": revive(Revival.RESET, "done"),
    "revive by APPEND": revive(Revival.APPEND, "done"),
    "revive by SUPERSEDE": revive(Revival.SUPERSEDE, "failed"),
    "revive by REPLACE": revive(Revival.REPLACE, "suspended"),
    "reassign": lambda grown: grown.queue.reassign("work", Result.SUCCESS, sequences=grown.some("failed")),
    "junction": lambda grown: grown.queue.junction("work", [grown.names("suspended")]),
    "eternal junction": lambda grown: grown.queue.junction(
        "work", [[*grown.names("suspended"), *grown.names("done")]], Junction.ETERNAL
    ),
    "release_groups_once": lambda grown: grown.queue.release_groups_once("a wait", "work", [grown.names("suspended")]),
    "purge": lambda grown: grown.queue.purge("work", size=SIZE),
    "purge of a state": lambda grown: grown.queue.purge("work", state=State.FAILED, size=SIZE),
    "purge of named tasks": lambda grown: grown.queue.purge(
        "work", sequences=[*grown.some("failed"), *grown.some("ready")]
    ),
    "latest": lambda grown: grown.queue.latest("work", grown.names("done")),
    "page": lambda grown: grown.queue.page("work", size=SIZE),
    "page of a state": lambda grown: grown.queue.page("work", size=SIZE, state=State.SUSPENDED),
    "ticks": lambda grown: grown.queue.install_ticks(
        "work", "tick", "hash", [(datetime(2030, 1, day, tzinfo=UTC), None) for day in range(1, SIZE)]
    ),
    "lock_tasks": lambda grown: grown.queue.lock_tasks("work", grown.some("failed"), [State.FAILED]),
    "events": lambda grown: grown.queue.events("work", None, SIZE),
}


@pytest.fixture(scope="module")
def growth(server_dsn: str, template: str) -> Iterator[dict[str, tuple[int, int]]]:
    """The rows that each call visits at SMALL and at LARGE, in a session that has planned them before."""
    with (
        database(server_dsn, template) as dsn,
        connect(dsn, autocommit=True) as conn,
        connect(dsn, autocommit=True) as filling,
    ):
        stop_autovacuum(conn)
        grown = Grown(TaskQueue(conn), TaskQueue(filling))
        grown.queue.create_topic("work")
        grown.queue.create_topic("on")
        grown.queue.push("on", ["never"])
        counts = []
        for size in (2 * SIZE, SMALL, LARGE):
            grown.grow(size)
            counts.append({name: grown.visited(call) for name, call in CALLS.items()})
        yield {name: (counts[1][name], counts[2][name]) for name in CALLS}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_visits_as_many_rows_in_a_topic_of_any_size(growth: dict[str, tuple[int, int]], name: str) -> None:
    small, large = growth[name]
    assert large <= small + SIZE * 5, f"{small} rows beside {SMALL} tasks of each kind, {large} beside {LARGE}"


def call_of_push(queue: TaskQueue, names: list[str], insertion: Insertion, since: int | None) -> int:
    """One call of a push of many calls. Returns the first sequence of the push so far."""
    query = "SELECT (SELECT min(s) FROM unnest(taskq.push('work', %s, %s, p_since => %s)) AS s)"
    [(first,)] = queue.conn.execute(query, (insertion.name, names, since)).fetchall()
    return min(since or int(first), int(first))


def stream(insertion: Insertion) -> Push:
    """Pushes tasks in one stream of many calls, two thirds of them distinct."""

    def push(queue: TaskQueue, prefix: str, size: int) -> None:
        names = [f"{prefix}{number * 7 % (size * 2 // 3)}" for number in range(size)]
        since = None
        with queue.conn.transaction():
            for start in range(0, size, 100):
                since = call_of_push(queue, names[start : start + 100], insertion, since)

    return push


def depend(queue: TaskQueue, prefix: str, size: int) -> None:
    """Pushes tasks in one call, each with a dependency of its own."""
    queue.push("work", [NewTask(f"{prefix}{number}", depends_on=[("on", f"{number}")]) for number in range(size)])


def offer(queue: TaskQueue, prefix: str, size: int) -> None:
    """Offers tasks in one call, and then the same identifiers and new ones with other payloads."""
    for payload, first in enumerate((0, size // 2)):
        tasks = [NewTask(f"{prefix}{number}", payload) for number in range(first, first + size)]
        queue.offer_many("work", tasks)


PUSHES: dict[str, Push] = {
    **{each.name: stream(each) for each in (Insertion.SUPERSEDE, Insertion.REPLACE, Insertion.DELETE)},
    "dependencies": depend,
    "offers": offer,
}


@pytest.mark.parametrize("name", PUSHES)
def test_a_push_visits_as_many_rows_per_task_whatever_its_size(own_queue: TaskQueue, name: str) -> None:
    own_queue.create_topic("on")
    own_queue.push("on", [f"{number}" for number in range(1200)])
    PUSHES[name](own_queue, "first ", 300)
    small, large = (
        explain(own_queue.conn, lambda: PUSHES[name](own_queue, f"{size} ", size)).visited / size  # noqa: B023
        for size in (300, 1200)
    )
    assert large <= 1.5 * small
    assert large <= 100


@pytest.mark.parametrize("insertion", [Insertion.SUPERSEDE, Insertion.REPLACE, Insertion.DELETE])
def test_each_call_of_a_push_reads_as_many_pages_however_many_calls_came_before(
    own_queue: TaskQueue, insertion: Insertion
) -> None:
    """Each call pushes the same identifiers, and new ones. The statistics, if any, know a single other identifier.

    Pages count the deleted rows of the earlier calls too, which no plan reports as rows.
    """
    own_queue.push("work", ["known"] * 3000)
    for statistics in ("SELECT", "ANALYZE"):
        own_queue.conn.execute(statistics.encode())
        pages: dict[int, int] = {}
        with own_queue.conn.transaction(force_rollback=True):
            since = None
            for number in range(1, 41):
                names = [*(f"again {n}" for n in range(SIZE)), *(f"{number} {n}" for n in range(SIZE))]
                if number in (10, 40):
                    seen = explain(own_queue.conn, lambda: call_of_push(own_queue, names, insertion, since))  # noqa: B023
                    pages[number] = seen.pages
                    assert seen.visited <= 100 * SIZE
                else:
                    since = call_of_push(own_queue, names, insertion, since)
        assert pages[40] <= 1.5 * pages[10], statistics


def test_dependents_cost_the_same_per_task_however_many_there_are(own_queue: TaskQueue) -> None:
    """They look in vain after the success of the first of their two dependencies."""
    own_queue.create_topic("on")
    owner = own_queue.register("owner", HOUR)
    costs: list[dict[str, float]] = []
    polled: list[Task] = []

    def succeed() -> None:
        own_queue.complete(owner, dict.fromkeys(own_queue.held(owner, "on"), Result.SUCCESS))

    for size in (300, 1200):
        own_queue.push("on", ["first", "second"])
        depends = [("on", "first"), ("on", "second")]
        own_queue.push("work", [NewTask(f"{size} {number}", depends_on=depends) for number in range(size)])
        calls: dict[str, Callable[[], object]] = {
            "complete the first": succeed,
            "look in vain": lambda: polled.extend(own_queue.poll("work", owner)),
            "complete the second": succeed,
            "poll": lambda: polled.extend(own_queue.poll("work", owner, 2000)),
        }
        costs.append({})
        for name, call in calls.items():
            if name.startswith("complete"):
                own_queue.poll("on", owner)
            costs[-1][name] = explain(own_queue.conn, call).visited / size
        assert len(polled) == size
        own_queue.complete(owner, dict.fromkeys(polled, Result.SUCCESS))
        polled.clear()
    small, large = costs
    assert {name: cost for name, cost in large.items() if cost > 1.5 * small[name] or cost > 100} == {}
