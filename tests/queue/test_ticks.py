"""Recurring tasks: one task for each moment from any number of installers; removal by exact prefix."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_taskq.queue import (
    InvalidTask,
    Json,
    NewTask,
    Owner,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TopicPolicy,
    UnknownTopic,
    connect,
    ticks_every,
)
from tests.internals import stored_rows
from tests.queue.conftest import everything

pytestmark = pytest.mark.promise("A tick that exists is never changed, and one that has ended is never stored again")

HOUR = timedelta(hours=1)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)  # so that its ticks are due
FAR = datetime(2100, 1, 1, tzinfo=UTC)


def moments(count: int, first: datetime = LONG_AGO) -> list[tuple[datetime, None]]:
    """Hourly ticks without a payload."""
    return [(first + HOUR * n, None) for n in range(count)]


def stored(queue: TaskQueue) -> list[str]:
    """The identifiers of a topic's tasks in alphabetical order."""
    return sorted(info.identifier for info in everything(queue))


def test_a_tick_is_a_task_that_is_due_at_its_nominal_time(queue: TaskQueue, owner: Owner) -> None:
    """A moment is one tick in any time zone, and identifiers sort as their times."""
    first, second = datetime(2100, 1, 1, 10, 30, tzinfo=UTC), datetime(2100, 1, 1, 11, 0, 0, 1, UTC)
    tokyo = first.astimezone(ZoneInfo("Asia/Tokyo"))
    ticks: list[tuple[datetime, Json]] = [
        (LONG_AGO, 0),
        (first, {"n": 1}),
        (second, None),
        (tokyo, 2),
        (datetime(1, 1, 1, tzinfo=UTC), 3),
    ]
    assert queue.install_ticks("work", "report", "h1", ticks) == 4
    assert queue.install_ticks("work", "report", "h1", [(tokyo, 4)]) == 0
    found = sorted((info.identifier, info.payload, info.available_at, info.status) for info in everything(queue))
    assert found[1:] == [
        ("report/h1/20200101T000000.000000Z", 0, LONG_AGO, "ready"),
        ("report/h1/21000101T103000.000000Z", {"n": 1}, first, "scheduled"),
        ("report/h1/21000101T110000.000001Z", None, second, "scheduled"),
    ]
    assert [task.payload for task in queue.poll("work", owner, 9)] == [3, 0]


def test_installing_again_adds_missing_ticks_and_changes_no_other(queue: TaskQueue) -> None:
    queue.install_ticks("work", "p", "h", [(LONG_AGO, "old"), (LONG_AGO + HOUR, "old")])
    before = {info.sequence: repr(info) + repr(info.payload) for info in everything(queue)}
    new = [(LONG_AGO + HOUR * n, NewTask("x", "new", priority=9)) for n in range(4)]
    assert queue.install_ticks("work", "p", "h", new) == 2
    after = {info.sequence: repr(info) + repr(info.payload) for info in everything(queue)}
    assert len(after) == 4
    assert before.items() <= after.items()
    assert queue.install_ticks("work", "p", "h", new) == queue.install_ticks("work", "p", "h", []) == 0
    assert len(everything(queue)) == 4, "ticks of the same configuration stay"


@pytest.mark.parametrize("result", list(Result))
def test_a_tick_that_has_ended_is_not_stored_again(queue: TaskQueue, owner: Owner, result: Result) -> None:
    queue.install_ticks("work", "p", "h", moments(1))
    [task] = queue.poll("work", owner)
    queue.complete(owner, {task: result})
    assert queue.install_ticks("work", "p", "h", moments(2)) == 1
    assert len(stored(queue)) == 2
    queue.install_ticks("work", "p", "another", [])
    assert len(stored(queue)) == 1, "the one that had ended"
    assert queue.install_ticks("work", "p", "h", moments(2)) == 1
    assert len(stored(queue)) == 2


@pytest.mark.promise("Another configuration replaces waiting ticks only")
@pytest.mark.parametrize("verb", ["install another", "uninstall"])
def test_a_new_configuration_removes_waiting_ticks_and_keeps_held_polled_and_ended_ones(
    queue: TaskQueue, owner: Owner, session: TaskQueue, verb: str
) -> None:
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=2, base=HOUR)))
    kinds = ["succeeded", "filtered", "suspended by a decision", "retrying", "held", "polled"]
    queue.create_topic("other")
    queue.install_ticks("other", "p", "old", moments(1))
    queue.install_ticks("work", "p", "old", moments(len(kinds)))
    queue.install_ticks("work", "p", "old", [(FAR, NewTask("x", suspended=True))])
    tasks = dict(zip(kinds, queue.poll("work", owner, 5), strict=False))
    [tasks["polled"]] = session.poll("work", session.register("open"))
    ends = dict(zip(kinds, [Result.SUCCESS, Result.FILTER, Result.SUSPENSION, Result.FAILURE], strict=False))
    queue.complete(owner, {tasks[kind]: result for kind, result in ends.items()})
    before = len(everything(queue))
    if verb == "uninstall":
        assert [queue.uninstall_ticks("work", "p", config) for config in ("other", "old", "old")] == [0, 2, 0]
    else:
        assert queue.install_ticks("work", "p", "new", []) == 0
    assert len(everything(queue)) == before - 2, (
        "the one that waited for its retry, and the suspended one, which was never taken"
    )
    assert len(everything(queue, "other")) == 1
    session.conn.commit()
    queue.complete(owner, {tasks["held"]: Result.SUCCESS})
    left = {info.sequence: info.state for info in everything(queue)}
    assert left == {
        tasks["succeeded"].sequence: State.SUCCEEDED,
        tasks["filtered"].sequence: State.FILTERED,
        tasks["suspended by a decision"].sequence: State.SUSPENDED,
        tasks["held"].sequence: State.SUCCEEDED,
        tasks["polled"].sequence: State.ACTIVE,
    }


PREFIXES = [
    *("a", "a/b", "a/b/c", "a/", "a//", "/", "/a", "_", "%", "a_", "a%", "ab", "A", "\\", "a\\", "\\_", "a b", " a"),
    *("a.", "a*", "a/h", "a/old", "é", "a/20200101T000000.000000Z", "a'", 'a"', "a0", "a/0", "(a)", "[a]", "^a", "$"),
]


@pytest.mark.promise("Another configuration replaces waiting ticks only")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(data=st.data())
def test_prefixes_are_literal_and_leave_each_other_alone(queue: TaskQueue, data: st.DataObject) -> None:
    text = st.text(st.sampled_from("a/_%\\0b"), min_size=1, max_size=4)
    prefixes = data.draw(st.lists(st.sampled_from(PREFIXES) | text, min_size=2, max_size=8, unique=True))
    changed = prefixes[0]
    queue.drop_topic("work")
    queue.create_topic("work")
    for prefix in prefixes:
        assert queue.install_ticks("work", prefix, "old", moments(1)) == 1
    queue.push("work", [f"{changed}/old", f"{changed}/old/x", f"{changed}old/20200101T000000.000000Z"])
    others = set(stored(queue)) - {f"{changed}/old/20200101T000000.000000Z"}
    assert queue.install_ticks("work", changed, "new", moments(1)) == 1
    assert set(stored(queue)) == others | {f"{changed}/new/20200101T000000.000000Z"}
    assert queue.uninstall_ticks("work", changed, "new") == 1
    assert set(stored(queue)) == others


def test_a_new_task_says_when_it_is_due_and_its_identifier_does_not_count(queue: TaskQueue) -> None:
    due = FAR + timedelta(minutes=5)
    queue.install_ticks(
        "work",
        "p",
        "h",
        [
            (FAR, NewTask("ignored", {"n": 1}, "r", available_at=due, priority=7, ttl=HOUR)),
            (FAR + HOUR, NewTask("ignored", delay=timedelta(0))),
            (FAR + 2 * HOUR, NewTask("ignored", suspended=True)),
            (FAR + 3 * HOUR, NewTask("ignored")),
        ],
    )
    first, second, third, fourth = everything(queue)
    assert (first.identifier, first.payload, first.reference) == ("p/h/21000101T000000.000000Z", {"n": 1}, "r")
    assert (first.available_at, first.priority) == (due, 7)
    assert (second.status, third.state, fourth.available_at) == ("ready", State.SUSPENDED, FAR + 3 * HOUR)


def test_a_tick_may_depend_on_other_tasks(queue: TaskQueue, owner: Owner) -> None:
    [basis] = queue.push("work", [NewTask("basis", priority=1)])
    waiting = NewTask("", depends_on=[("work", "basis")])
    before = stored_rows(queue.conn)
    queue.install_ticks("work", "q", "h", [(LONG_AGO, waiting)])
    queue.uninstall_ticks("work", "q", "h")
    assert stored_rows(queue.conn) == before, "nothing is left of a removed tick"
    queue.install_ticks("work", "p", "h", moments(1))
    assert (
        queue.install_ticks("work", "p", "h", [*moments(1), (LONG_AGO + HOUR, waiting), (LONG_AGO + 2 * HOUR, 5)]) == 2
    )
    assert queue.poll("work", owner, 1) == [basis]
    assert [task.identifier[-15:-8] for task in queue.poll("work", owner, 9)] == ["T000000", "T020000"]
    queue.complete(owner, {basis: Result.SUCCESS})
    assert [task.identifier[-15:-8] for task in queue.poll("work", owner, 9)] == ["T010000"]


@pytest.mark.parametrize(
    ("prefix", "config_hash", "ticks", "words"),
    [
        ("", "h", [], "prefix"),
        (" ", "h", [], "prefix"),
        ("p", "", [], "hash"),
        ("p", "a/b", [], "hash"),
        ("p", "h", [(FAR, None), (FAR.replace(tzinfo=None), None)], "position 1: its nominal time"),
        ("p", "h", [(FAR, None), ("2100-01-01", None)], "position 1: its nominal time"),
        ("p", "h", [(datetime(9999, 12, 31, 12, tzinfo=UTC), None)], "position 0: its available_at is outside"),
        ("p", "h", [(FAR, None), (LONG_AGO, object())], "position 1: its payload"),
        ("p", "h", [(FAR, None), (LONG_AGO, NewTask("", priority=101))], "position 1: its priority"),
        ("p", "h", [(LONG_AGO, NewTask("", available_at=FAR, delay=HOUR))], "position 0: it has both"),
        ("p", "h", [(FAR, None), (LONG_AGO, "x" * 300_000)], "position 1: its payload"),
        ("p", "before", [(FAR, None), (LONG_AGO, "x" * 300_000)], "position 1: its payload"),  # of a tick that exists
        ("p" * 480, "h", [(FAR, None)], "position 0: its identifier"),
        ("p\0", "h", [(FAR, None)], "NUL"),
    ],
)
def test_ticks_that_break_a_rule_are_refused_and_nothing_is_changed(
    queue: TaskQueue, prefix: str, config_hash: str, ticks: list[tuple[datetime, None]], words: str
) -> None:
    queue.install_ticks("work", "p", "before", moments(1))
    with pytest.raises(InvalidTask, match=words):
        queue.install_ticks("work", prefix, config_hash, ticks)
    assert stored(queue) == ["p/before/20200101T000000.000000Z"]


def test_ticks_of_an_unknown_topic_are_refused(queue: TaskQueue) -> None:
    with pytest.raises(UnknownTopic, match="nowhere"):
        queue.install_ticks("nowhere", "p", "h", moments(1))
    with pytest.raises(UnknownTopic, match="nowhere"):
        queue.uninstall_ticks("nowhere", "p", "h")


# Many schedulers, and thousands of ticks. Steps of two are in ticks.spec.


@pytest.mark.promise("Any number of schedulers store one task for each moment")
def test_one_installation_takes_thousands_of_ticks(queue: TaskQueue) -> None:
    with pytest.raises(InvalidTask, match="position 11000"):
        queue.install_ticks("work", "p", "h", [*moments(11_000), (FAR, NewTask("", priority=101))])
    assert stored(queue) == []
    assert queue.install_ticks("work", "p", "h", iter(moments(11_000))) == 11_000
    assert queue.install_ticks("work", "p", "h", moments(11_100)) == 100


@pytest.mark.promise("Any number of schedulers store one task for each moment")
@pytest.mark.parametrize("schedulers", [2, 8])
def test_any_number_of_schedulers_store_one_task_for_each_moment(queue: TaskQueue, dsn: str, schedulers: int) -> None:
    """During a deployment of another configuration, the last call decides."""
    rounds = 12

    def scheduling(number: int) -> int:
        added = 0
        with connect(dsn) as conn:
            for turn in range(rounds):
                ticks = [(moment, number) for moment in ticks_every(HOUR, LONG_AGO + HOUR * turn, 5)]
                added += TaskQueue(conn).install_ticks("work", "p", "h", ticks)
                TaskQueue(conn).install_ticks("work", "deployed", f"{number % 2}", moments(3, FAR))
                conn.commit()
        return added

    with ThreadPoolExecutor(schedulers) as pool:
        added = sum(pool.map(scheduling, range(schedulers)))
    left = [name for name in stored(queue) if name.startswith("p/")]
    assert len(left) == len(set(left)) == added == rounds + 4
    deployed = [name.split("/")[1] for name in stored(queue) if name.startswith("deployed/")]
    assert deployed in (["0"] * 3, ["1"] * 3)
