"""Topics: the time and the locks of an operation, by the number of topics and of those with own tables."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from itertools import cycle, islice
from statistics import median

import psycopg

from airflow_provider_taskq.queue import Owner, Result, Task, TaskQueue, connect
from bench.rig import Rig, seconds

VERBS = ("push", "poll", "complete")
# Numbers of topics, and of those among them that have tables of their own.
SHAPES = ((1, 0), (100, 0), (5_000, 0), (100, 1), (100, 10), (100, 100), (5_000, 10))
ROUNDS = 20
REPETITIONS = 50
MOST = 1.5


@dataclass(frozen=True, slots=True)
class Place:
    """A topic to measure on, among others."""

    name: str
    queue: TaskQueue
    owner: Owner
    topic: str

    def costs(self) -> dict[str, float]:
        """The seconds of a push, a poll and a completion of one task; commits cost nothing here."""
        polled: list[Task] = []
        return {
            "push": seconds(lambda: self.queue.push(self.topic, ["task"])),
            "poll": seconds(lambda: polled.extend(self.queue.poll(self.topic, self.owner))),
            "complete": seconds(lambda: self.queue.complete(self.owner, dict.fromkeys(polled, Result.SUCCESS))),
        }

    def locks(self) -> dict[str, int]:
        """How many tables and indexes a transaction with one such call locks."""
        polled: list[Task] = []
        works = {
            "push": lambda: self.queue.push(self.topic, ["task"]),
            "poll": lambda: polled.extend(self.queue.poll(self.topic, self.owner)),
            "complete": lambda: self.queue.complete(self.owner, dict.fromkeys(polled, Result.SUCCESS)),
        }
        return {verb: _locked(self.queue.conn, work) for verb, work in works.items()}


def run(rig: Rig) -> None:
    """Measures single operations, in turn, at 1 to 5,000 topics, of which up to 100 have their own tables."""
    print(
        f"\nTopics: median ms of an operation on one task, and the relations it locks; flat is <= {MOST}x the first row"
    )
    with ExitStack() as stack:
        places = [place for shape in SHAPES for place in _places(rig, stack, *shape)]
        figures: dict[str, dict[str, list[float]]] = {place.name: {verb: [] for verb in VERBS} for place in places}
        for place in islice(cycle([*places, *places[::-1]]), ROUNDS * len(places)):
            for _ in range(REPETITIONS):
                for verb, cost in place.costs().items():
                    figures[place.name][verb].append(cost)
        first = {verb: median(figures[places[0].name][verb]) for verb in VERBS}
        for place in places:
            locks = place.locks()
            medians = {verb: median(figures[place.name][verb]) for verb in VERBS}
            shown = (
                f"{verb} {1000 * medians[verb]:6.3f} {medians[verb] / first[verb]:4.2f}x {locks[verb]:>3}"
                for verb in VERBS
            )
            print(f"  {place.name:<42} {'   '.join(shown)}")


def _places(rig: Rig, stack: ExitStack, topics: int, apart: int) -> Iterator[Place]:
    """A database with topics of ten tasks each: one in the shared tables, and one in tables of its own."""
    conn = stack.enter_context(connect(stack.enter_context(rig.database()), autocommit=True))
    conn.execute("SET synchronous_commit = off")
    queue = TaskQueue(conn)
    names = ["shared", *(f"apart {number}" for number in range(apart))]
    with conn.transaction():
        for name in [*names, *(f"topic {number}" for number in range(topics - len(names)))]:
            queue.create_topic(name, own_tables=name.startswith("apart"))
            queue.push(name, [f"task {number}" for number in range(10)])
    conn.execute("VACUUM ANALYZE")
    for kept, topic in {"shared": "shared", "one of them": "apart 0"}.items():
        if topic in names:
            yield Place(
                f"{topics:,} topics, {apart} apart: {kept}", queue, queue.register(topic, timedelta(hours=1)), topic
            )


def _locked(conn: psycopg.Connection, work: Callable[[], object]) -> int:
    with conn.transaction():
        work()
        row = conn.execute(
            "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation'"
            " AND relation <> 'pg_locks'::regclass"
        ).fetchone()
    assert row is not None
    return int(row[0])
