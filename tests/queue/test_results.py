"""Results between two moments, and the sequence of a moment."""

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from airflow_provider_taskq.queue import Insertion, InvalidTask, Owner, Result, State, TaskQueue
from tests.internals import interrupted, set_created, set_next_sequence, store_tasks
from tests.queue.conftest import known, task_in
from tests.queue.test_sessions import pages_of

pytestmark = pytest.mark.promise("Tasks, pages, counts and results are read as they are")

FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
DONE = [State.FAILED, State.SUSPENDED, State.FILTERED, State.SUCCEEDED]


@pytest.mark.parametrize("state", DONE)
def test_both_bounds_are_included_and_either_may_be_open(queue: TaskQueue, owner: Owner, state: State) -> None:
    at = known(queue, task_in(queue, owner, state)).completed
    assert at is not None
    one, none = {"work": {Result(state - 3): 1}}, {"work": {}}  # type: ignore[var-annotated]
    assert queue.results(at, at) == queue.results(since=at) == queue.results(until=at) == one
    assert queue.results(FIRST, LAST) == one
    assert queue.results(since=at + MICROSECOND) == queue.results(until=at - MICROSECOND) == none
    assert queue.results(at + MICROSECOND, at - MICROSECOND) == none


DAY = 86_400.0


@pytest.mark.parametrize(
    ("moment", "following", "preceding"), [("-infinity", 1, None), ("infinity", None, 2), (None, None, None)]
)
def test_in_sql_a_moment_may_be_infinite_or_null(
    own_queue: TaskQueue, moment: str | None, following: int | None, preceding: int | None
) -> None:
    assert own_queue.resolve(LAST, preceding=True) is own_queue.resolve(FIRST) is None
    own_queue.push("work", ["a", "b"])
    for direction, expected in ((False, following), (True, preceding)):
        row = own_queue.conn.execute("SELECT taskq.resolve(%s::timestamptz, %s)", (moment, direction)).fetchone()
        assert row == (expected,)


@pytest.mark.parametrize("moment", [datetime(2024, 1, 1), datetime.min, datetime.max])  # noqa: DTZ001, DTZ901
def test_a_moment_without_a_time_zone_is_refused(queue: TaskQueue, moment: datetime) -> None:
    with pytest.raises(InvalidTask, match="has no time zone"):
        queue.resolve(moment)
    with pytest.raises(InvalidTask, match="has no time zone"):
        queue.results(since=moment)
    with pytest.raises(InvalidTask, match="has no time zone"):
        queue.results(until=moment)


def push_hundred_days(queue: TaskQueue) -> datetime:
    """100,000 tasks of a hundred days, which take a thousand pages, and more of their indexes.

    Return the moment before task 80,001, twenty days before the last one.
    """
    store_tasks(queue.conn, 1, 100_000, states=[State.SUCCEEDED], spread=timedelta(days=100))
    task = queue.task("work", 80_001)
    assert task
    return task.created - MICROSECOND


def test_a_moment_is_resolved_in_few_pages_whether_the_tables_were_vacuumed_or_not(own_queue: TaskQueue) -> None:
    queue = own_queue
    for number in range(20):
        queue.create_topic(f"empty-{number}")
    middle = push_hundred_days(queue)
    for prepared in (b"SELECT 1", b"ANALYZE", b"VACUUM ANALYZE"):
        queue.conn.execute(prepared)
        assert queue.resolve(middle) == 80_001
        assert queue.resolve(middle, preceding=True) == 80_000
        for moment in (FIRST, middle, LAST):
            assert pages_of(queue, lambda m=moment: queue.resolve(m)) < 500  # type: ignore[misc]
            assert pages_of(queue, lambda m=moment: queue.resolve(m, preceding=True)) < 500  # type: ignore[misc]


@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed"])
def test_results_of_a_day_are_counted_without_reading_the_whole_table(own_queue: TaskQueue, analysed: bool) -> None:
    queue = own_queue
    middle = push_hundred_days(queue)
    queue.conn.execute("VACUUM ANALYZE" if analysed else "VACUUM")
    day = middle + timedelta(days=1)
    assert queue.results(middle, day)["work"][Result.SUCCESS] == 1000
    assert pages_of(queue, lambda: queue.results(middle, day)) < 200


@pytest.mark.parametrize("seed", range(10))
def test_a_moment_is_resolved_exactly_if_pushes_drew_their_sequences_up_to_ten_seconds_later(
    queue: TaskQueue, seed: int
) -> None:
    """Tasks of three topics, of which one is sparse, at random intervals, with random gaps of seconds to days."""
    chance = Random(seed)  # noqa: S311 -- tasks that can be made again
    topics = ["work", "other", "sparse"]
    for topic in topics[1:]:
        queue.create_topic(topic)
    start, drawn = datetime(2026, 1, 1, tzinfo=UTC), 0.0
    rows: list[tuple[int, datetime, str]] = []
    for sequence in sorted(chance.sample(range(1, 1_000_000), 150)):
        drawn += chance.choice([0, 0.01, 1, 3, 15, chance.choice([0.5, 3600, 5 * DAY])])
        created = start + timedelta(seconds=drawn - chance.choice([0, 0, chance.uniform(0, 9.9)]))
        rows.append((sequence, created, chance.choices(topics, [10, 5, 1])[0]))
    with queue.conn.transaction():
        for sequence, _, topic in rows:
            set_next_sequence(queue.conn, sequence)
            queue.push(topic, ["any"])
        set_created(queue.conn, {sequence: created for sequence, created, _ in rows})
    near = [created + timedelta(seconds=after) for _, created, _ in rows for after in (0, -5, 5, 1e-6, -1e-6)]
    for moment in [FIRST, LAST, *chance.sample(near, 100)]:
        following = [sequence for sequence, created, _ in rows if created >= moment]
        preceding = [sequence for sequence, created, _ in rows if created <= moment]
        assert queue.resolve(moment) == min(following, default=None)
        assert queue.resolve(moment, preceding=True) == max(preceding, default=None)


@pytest.mark.parametrize("insertion", ["SUPERSEDE", "REPLACE", "DELETE"])
def test_a_push_reads_its_time_after_it_has_displaced_older_tasks(own_queue: TaskQueue, insertion: str) -> None:
    """To displace many tasks may take longer than the ten seconds that `resolve` allows."""
    queue = own_queue
    queue.push("work", ["a"])
    queue.conn.execute("CREATE TABLE public.displaced (at timestamptz)")
    note = "INSERT INTO public.displaced VALUES (clock_timestamp());"
    with interrupted(queue.conn, "removal" if insertion == "DELETE" else "end", note):
        (task,) = queue.push("work", ["a"], insertion=Insertion(insertion))
    row = queue.conn.execute("SELECT max(at) FROM public.displaced").fetchone()
    assert row is not None
    assert known(queue, task).created > row[0]
