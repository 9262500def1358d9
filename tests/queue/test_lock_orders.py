"""Two transactions that need the same locks: none ends in a deadlock, or the error says to repeat the transaction.

Each test stops the sessions step by step: every session takes its first lock, and then asks for a lock of another one.
A third session sometimes holds a row, to stop a single call between two of its statements.
"""

import pickle
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import LiteralString
from uuid import UUID

import psycopg
import pytest

from airflow_provider_taskq.queue import (
    Cursor,
    Deadlock,
    LeaseLost,
    NotHeld,
    Owner,
    Result,
    RetryPolicy,
    State,
    Task,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
)
from airflow_provider_taskq.queue.errors import is_transient, to_queue_error, translate_errors
from tests.queue.conftest import (
    InBackground,
    await_blocked,
    await_standstill,
    deadlocks,
    hurry,
    identifiers,
    is_blocked,
    lapse,
    states,
    task_in,
    until,
)

HOUR = timedelta(hours=1)
OpenQueue = Callable[[], TaskQueue]


def alone(queue: TaskQueue) -> TaskQueue:
    """The session, with each call in a transaction of its own."""
    queue.conn.autocommit = True
    return queue


def value(queue: TaskQueue, call: LiteralString, *arguments: object) -> object:
    """The value that a call of a function returns."""
    row = queue.conn.execute(call, arguments).fetchone()
    assert row is not None
    return row[0]


def count(queue: TaskQueue, table: LiteralString) -> int:
    """The number of rows of a table."""
    return queue.conn.execute(f"SELECT FROM {table}".encode()).rowcount


# The error.


def wait_first(session: TaskQueue, second: TaskQueue) -> None:
    """Lets the server end the transaction of `second` if both wait for each other."""
    for each, timeout in ((session, "10min"), (second, "10ms")):
        each.conn.execute("SELECT set_config('deadlock_timeout', %s, false)", (timeout,))
        each.conn.commit()


def test_the_error_of_a_deadlock_names_what_collided_and_a_repetition_succeeds(
    queue: TaskQueue, session: TaskQueue, open_queue: OpenQueue, background: InBackground[bool]
) -> None:
    queue.create_topic("other")
    second = open_queue()
    wait_first(session, second)
    session.pause_topic("work")
    second.pause_topic("other")
    second.push("other", ["a"])
    waiting = background(lambda: session.pause_topic("other"))
    await_blocked(queue.conn, session, second)
    pid = session.conn.info.backend_pid
    with pytest.raises(Deadlock) as refusal:
        second.pause_topic("work")
    assert str(refusal.value) == (
        f"set_paused() and the transaction of session {pid} waited for each other's locks in topic (a deadlock): the"
        " server has ended this transaction, and nothing of it is stored. Repeat the whole transaction"
    )
    second.conn.rollback()
    assert waiting.result(60) is True
    session.conn.commit()
    assert states(queue, "other") == []
    assert [second.pause_topic("other"), second.pause_topic("work")] == [False, False]


def test_a_deadlock_is_a_transient_error_of_psycopg_and_of_the_queue_and_can_be_pickled() -> None:
    error = to_queue_error(psycopg.errors.DeadlockDetected("deadlock detected"))
    assert isinstance(error, Deadlock)
    assert isinstance(error, TaskQueueError)
    assert isinstance(error, psycopg.errors.DeadlockDetected)
    assert is_transient(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own bytes
    assert str(error).startswith("this statement and another transaction waited for each other's locks (a deadlock)")
    with pytest.raises(Deadlock) as raised, translate_errors():
        raise error
    assert raised.value is error


def test_a_decision_on_the_same_tasks_in_another_order_ends_in_a_deadlock_that_changes_nothing(
    queue: TaskQueue, owner: Owner, session: TaskQueue, open_queue: OpenQueue, background: InBackground[None]
) -> None:
    """Two programs that work under one owner decide on the same tasks: the first one wins."""
    first, second = (task_in(queue, owner, State.ACTIVE, name) for name in "ab")
    other = open_queue()
    wait_first(session, other)
    session.complete(owner, {first: Result.SUCCESS})
    other.complete(owner, {second: Result.FAILURE})
    waiting = background(lambda: session.complete(owner, {second: Result.SUCCESS}))
    await_blocked(queue.conn, session, other)
    with pytest.raises(Deadlock, match=r"complete\(\) and the transaction of session \d+ waited .* in live_default "):
        other.complete(owner, {first: Result.FAILURE})
    other.conn.rollback()
    waiting.result(60)
    session.conn.commit()
    assert states(queue) == [("a", State.SUCCEEDED), ("b", State.SUCCEEDED)]
    with pytest.raises(NotHeld):
        other.complete(owner, {second: Result.FAILURE})


# Stages.

STAGED = ("taskq.staged", "taskq.staged_task", "taskq.staged_junction")
ABANDON: LiteralString = "SELECT taskq.abandon_stage(%s)"
PRUNE: LiteralString = "SELECT taskq.prune_stages()"


def stage_of(queue: TaskQueue, owner: Owner, sequence: int) -> UUID:
    """A stage with rows of a lost attempt 0 and of a successful attempt 1."""
    stage = value(queue, "SELECT taskq.open_stage(%s, %s)", owner.name, owner.fence)
    assert isinstance(stage, UUID)
    for attempt in (0, 1):
        queue.conn.execute(
            "INSERT INTO taskq.staged (stage, part, attempt, sequence, result) VALUES (%s, 0, %s, %s, 3)",
            (stage, attempt, sequence),
        )
        queue.conn.execute(
            "INSERT INTO taskq.staged_task (stage, part, attempt, place, parent, topic, identifier)"
            " VALUES (%s, 0, %s, 0, %s, 'work', 'next')",
            (stage, attempt, sequence),
        )
        queue.conn.execute(
            "INSERT INTO taskq.staged_junction (stage, part, attempt, parent, topic, groups, junction)"
            " VALUES (%s, 0, %s, %s, 'work', '[[\"a\"]]', 'SINGULAR')",
            (stage, attempt, sequence),
        )
    return stage


def complete_stage(queue: TaskQueue, owner: Owner, stage: UUID) -> object:
    """Commits attempt 1 of a stage."""
    return value(queue, "SELECT taskq.complete_staged(%s, %s, %s, '{0}', '{1}', '{1}')", owner.name, owner.fence, stage)


def test_pruning_and_abandoning_a_stage_remove_it_once_and_do_not_deadlock(
    queue: TaskQueue, owner: Owner, session: TaskQueue, open_queue: OpenQueue, background: InBackground[object]
) -> None:
    pruning, abandoning, ended = alone(open_queue()), alone(open_queue()), deadlocks(queue.conn)
    stage = stage_of(queue, owner, task_in(queue, owner, State.ACTIVE).sequence)
    queue.release(owner)
    queue.conn.execute("INSERT INTO taskq_internal.deferred_task (fence, sequence) VALUES (0, 0)")
    session.conn.execute("SELECT FROM taskq_internal.deferred_task FOR UPDATE")  # which the pruning reads in the middle
    pruned = background(lambda: value(pruning, PRUNE))
    await_blocked(queue.conn, pruning, session)
    abandoned = background(lambda: value(abandoning, ABANDON, stage))
    await_blocked(queue.conn, abandoning, pruning)
    session.conn.rollback()
    assert (pruned.result(60), abandoned.result(60)) == (1, 0)
    assert [count(queue, table) for table in STAGED] == [0, 0, 0]
    assert states(queue) == [("a", State.READY)]
    assert deadlocks(queue.conn) == ended


def test_pruning_passes_a_stage_that_another_transaction_abandons(
    queue: TaskQueue, owner: Owner, session: TaskQueue
) -> None:
    stage = stage_of(queue, owner, task_in(queue, owner, State.ACTIVE).sequence)
    queue.release(owner)
    value(session, ABANDON, stage)
    assert value(hurry(queue), PRUNE) == 0
    session.conn.rollback()
    assert value(queue, PRUNE) == 1
    assert [count(queue, table) for table in STAGED] == [0, 0, 0]


def test_abandoning_a_stage_and_completing_it_do_not_deadlock(
    queue: TaskQueue, owner: Owner, session: TaskQueue, open_queue: OpenQueue, background: InBackground[object]
) -> None:
    completing, abandoning, ended = alone(open_queue()), alone(open_queue()), deadlocks(queue.conn)
    stage = stage_of(queue, owner, task_in(queue, owner, State.ACTIVE).sequence)
    session.conn.execute("SELECT FROM taskq.staged_junction FOR UPDATE")  # which an abandoning removes in the middle
    abandoned = background(lambda: value(abandoning, ABANDON, stage))
    await_blocked(queue.conn, abandoning, session)
    completed = background(lambda: complete_stage(completing, owner, stage))
    await_blocked(queue.conn, completing, abandoning)
    session.conn.rollback()
    assert abandoned.result(60) == 2
    with pytest.raises(Exception, match="has 0 of the 1 decisions that part 0 reported: run the job again"):
        completed.result(60)
    assert states(queue) == [("a", State.ACTIVE)]
    assert deadlocks(queue.conn) == ended


def test_a_stage_that_is_completed_first_is_abandoned_after_the_commit(
    queue: TaskQueue, owner: Owner, session: TaskQueue, open_queue: OpenQueue, background: InBackground[object]
) -> None:
    abandoning = alone(open_queue())
    stage = stage_of(queue, owner, task_in(queue, owner, State.ACTIVE).sequence)
    assert complete_stage(session, owner, stage) == 1
    abandoned = background(lambda: value(abandoning, ABANDON, stage))
    await_blocked(queue.conn, abandoning, session)
    session.conn.commit()
    assert abandoned.result(60) == 1
    assert states(queue) == [("a", State.SUCCEEDED), ("next", State.READY)]


def test_pruning_passes_an_old_push_that_another_transaction_abandons(queue: TaskQueue, session: TaskQueue) -> None:
    stage = value(queue, "SELECT taskq.open_push()")
    queue.conn.execute(
        "INSERT INTO taskq.staged_task (stage, part, attempt, place, topic, identifier, staged)"
        " VALUES (%s, 0, 1, 0, 'work', 'a', now() - interval '2 days')",
        (stage,),
    )
    assert value(session, "SELECT taskq.abandon_push(%s)", stage) == 1
    value(hurry(queue), PRUNE)
    session.conn.rollback()
    assert count(queue, "taskq.staged_task") == 1
    value(queue, PRUNE)
    assert count(queue, "taskq.staged_task") == 0


# Probes.


def stop_at_first_failure(queue: TaskQueue, owner: Owner, topic: str, names: str) -> None:
    """Makes a topic whose tasks have failed once: polls hand out one of these retries at a time."""
    queue.create_topic(topic)
    queue.alter_topic(topic, TopicPolicy(RetryPolicy(max_attempts=9, base=timedelta(0), probe=True)))
    queue.push(topic, list(names))
    queue.complete(owner, dict.fromkeys(queue.poll(topic, owner, len(names)), Result.FAILURE))


def hold_retry(queue: TaskQueue, owner: Owner, topic: str, others: str) -> Task:
    """Makes a topic whose retries fail while the owner holds one that is not the probe: the others are due."""
    stop_at_first_failure(queue, owner, topic, "ab")
    [probe] = queue.poll(topic, owner, 2)
    queue.complete(owner, {probe: Result.SUCCESS})
    [held] = queue.poll(topic, owner, 2)
    stop_at_first_failure(queue, owner, topic, others)
    return held


def test_polls_that_may_not_probe_do_not_deadlock_with_completions_of_each_others_topics(
    queue: TaskQueue, owner: Owner, open_queue: OpenQueue
) -> None:
    """Each session polls a topic whose probe the other one holds, and then completes the probe that it holds itself."""
    one, two = hurry(open_queue()), hurry(open_queue())
    first, second = queue.register("one"), queue.register("two")
    for topic in ("work", "other"):
        stop_at_first_failure(queue, owner, topic, "ab")
    [held_by_second] = queue.poll("work", second, 2)
    [held_by_first] = queue.poll("other", first, 2)
    assert one.poll("work", first, 2) == []
    assert two.poll("other", second, 2) == []
    one.complete(first, {held_by_first: Result.SUCCESS})
    two.complete(second, {held_by_second: Result.SUCCESS})
    one.conn.commit()
    two.conn.commit()
    assert [len(queue.poll(topic, owner, 2)) for topic in ("work", "other")] == [1, 1], "probing has ended"


def test_polls_that_probe_do_not_deadlock_with_completions_of_each_others_topics(
    queue: TaskQueue, owner: Owner, open_queue: OpenQueue
) -> None:
    one, two = hurry(open_queue()), hurry(open_queue())
    first, second = queue.register("one"), queue.register("two")
    held_by_second = hold_retry(queue, second, "work", "xy")
    held_by_first = hold_retry(queue, first, "other", "xy")
    assert identifiers(one.poll("work", first, 2)) == ["x"]
    assert identifiers(two.poll("other", second, 2)) == ["x"]
    one.complete(first, {held_by_first: Result.SUCCESS})
    two.complete(second, {held_by_second: Result.SUCCESS})
    one.conn.commit()
    two.conn.commit()
    assert [identifiers(queue.poll(topic, owner, 2)) for topic in ("work", "other")] == [["y"], ["y"]]


def test_the_completion_of_a_retry_does_not_wait_for_a_poll_that_sends_the_probe(
    queue: TaskQueue, owner: Owner, session: TaskQueue
) -> None:
    held = hold_retry(queue, owner, "work", "xy")
    other = queue.register("other")
    assert identifiers(session.poll("work", other, 2)) == ["x"]
    hurry(queue).complete(owner, {held: Result.SUCCESS})
    session.conn.rollback()
    assert identifiers(queue.poll("work", owner, 2)) == ["x", "y"], "the completed retry ended the probing"


def test_a_poll_that_may_not_probe_keeps_no_other_poll_from_the_next_probe(
    queue: TaskQueue, owner: Owner, session: TaskQueue
) -> None:
    stop_at_first_failure(queue, owner, "work", "ab")
    [probe] = queue.poll("work", owner, 2)
    assert session.poll("work", queue.register("other"), 2) == []
    hurry(queue).complete(owner, {probe: Result.FAILURE})
    assert identifiers(queue.poll("work", owner, 2)) == ["b"], "while the transaction of the empty poll is open"


# Consumer groups.


def due_generation(queue: TaskQueue) -> Cursor:
    """A group whose next generation is due, because both partitions have reached the end of the current one."""
    queue.join_group("readers", "work", 2)
    end = Cursor(queue.push("work", ["a"])[0].sequence)
    queue.advance("readers", "work", 0, end)
    assert queue.join_group("readers", "work", 3).partitions == 2
    queue.advance("readers", "work", 1, end)
    return end


def progress(queue: TaskQueue) -> list[Cursor | None]:
    """The stored progress of each of three partitions."""
    return [queue.progress("readers", "work", partition) for partition in range(3)]


def test_an_open_advance_keeps_no_member_that_acquires_a_partition_waiting(
    queue: TaskQueue, session: TaskQueue
) -> None:
    """The member begins the next generation, which replaces the progress of all partitions."""
    end = due_generation(queue)
    session.advance("readers", "work", 1, end)
    assert hurry(queue).acquire_partition("readers", "work", "member", HOUR) is None
    session.advance("readers", "work", 0, end)
    session.conn.commit()
    acquired = queue.acquire_partition("readers", "work", "member", HOUR)
    assert acquired is not None
    assert (acquired.partitions, progress(queue)) == (3, [end, end, end])


@pytest.mark.parametrize("verb", ["join_group", "forget_group"])
def test_an_advance_of_several_partitions_does_not_deadlock_with_a_change_of_their_group(
    queue: TaskQueue, session: TaskQueue, open_queue: OpenQueue, background: InBackground[object], verb: str
) -> None:
    changing, ended, end = alone(open_queue()), deadlocks(queue.conn), due_generation(queue)
    session.advance("readers", "work", 1, end)
    changed = background(
        lambda: (
            changing.join_group("readers", "work", 3).partitions
            if verb == "join_group"
            else changing.forget_group("readers", "work")
        )
    )
    await_blocked(queue.conn, changing, session)
    session.advance("readers", "work", 0, end)
    session.conn.commit()
    assert changed.result(60) == (3 if verb == "join_group" else True)
    assert progress(queue) == ([end] * 3 if verb == "join_group" else [None] * 3)
    assert deadlocks(queue.conn) == ended


def test_a_first_advance_of_several_partitions_does_not_deadlock_with_a_new_generation(
    queue: TaskQueue, session: TaskQueue, open_queue: OpenQueue, background: InBackground[int]
) -> None:
    changing, ended = alone(open_queue()), deadlocks(queue.conn)
    queue.join_group("readers", "work", 2)
    end = Cursor(queue.push("work", ["a"])[0].sequence)
    session.advance("readers", "work", 1, end)
    changed = background(lambda: changing.join_group("readers", "work", 3).partitions)
    await_blocked(queue.conn, changing, session)
    session.advance("readers", "work", 0, end)
    session.conn.commit()
    assert (changed.result(60), progress(queue)) == (3, [end, end, end])
    assert deadlocks(queue.conn) == ended


def test_an_advance_of_several_partitions_without_a_group_does_not_deadlock_with_their_removal(
    queue: TaskQueue, session: TaskQueue, open_queue: OpenQueue, background: InBackground[bool]
) -> None:
    forgetting, ended = alone(open_queue()), deadlocks(queue.conn)
    for partition in range(2):
        queue.advance("readers", "work", partition, Cursor(1))
    session.advance("readers", "work", 1, Cursor(2))
    forgotten = background(lambda: forgetting.forget_group("readers", "work"))
    await_standstill(queue.conn, forgetting)
    session.advance("readers", "work", 0, Cursor(2))
    session.conn.commit()
    assert forgotten.result(60) is True
    assert progress(queue) == [None, None, None]
    assert deadlocks(queue.conn) == ended


# Leases.


@pytest.mark.parametrize("verb", ["heartbeat", "release", "complete", "register"])
@pytest.mark.parametrize("purge", ["purge", "purge_all"])
def test_an_expiry_leaves_an_owner_to_a_transaction_that_removed_its_tasks(
    queue: TaskQueue,
    owner: Owner,
    session: TaskQueue,
    open_queue: OpenQueue,
    background: InBackground[int],
    purge: str,
    verb: str,
) -> None:
    """The expiry needs the tasks of the owner, and the transaction then needs the owner."""
    queue.create_topic("other")
    expiring, crashed, ended = alone(open_queue()), queue.register("crashed"), deadlocks(queue.conn)
    removed, kept = task_in(queue, owner, State.ACTIVE), task_in(queue, owner, State.ACTIVE, "b", "other")
    task_in(queue, crashed, State.ACTIVE, "c", "other")
    lapse(queue, owner)
    lapse(queue, crashed)
    if purge == "purge":
        assert session.purge("work", removed.sequence, removed.sequence, State.ACTIVE) == 1
    else:
        assert session.purge_all("work") == 1
    expired = background(expiring.expire)
    until(lambda: expired.done() or is_blocked(queue.conn, expiring, session))
    calls: dict[str, Callable[[], object]] = {
        "heartbeat": lambda: session.heartbeat(owner),
        "release": lambda: session.release(owner),
        "complete": lambda: session.complete(owner, {kept: Result.SUCCESS}),
        "register": lambda: session.register(owner.name),
    }
    calls[verb]()
    session.conn.commit()
    assert expired.result(60) == 1
    held = {"heartbeat": State.ACTIVE, "register": State.ACTIVE, "release": State.READY, "complete": State.SUCCEEDED}
    assert states(queue) == []
    assert states(queue, "other") == [("b", held[verb]), ("c", State.READY)]
    assert deadlocks(queue.conn) == ended


@pytest.mark.parametrize("first", ["take_over", "expire"])
def test_a_claim_that_is_taken_over_during_an_expiry_keeps_all_tasks_or_none(
    queue: TaskQueue,
    owner: Owner,
    session: TaskQueue,
    open_queue: OpenQueue,
    background: InBackground[Owner],
    first: str,
) -> None:
    taking, ended = open_queue(), deadlocks(queue.conn)
    queue.push("work", ["a", "b"])
    queue.poll("work", owner, 2)
    lapse(queue, owner)
    if first == "take_over":
        taken = taking.take_over(owner.name, owner.fence, HOUR)
        assert hurry(queue).expire() == 0
        taking.conn.commit()
        assert len(queue.held(taken)) == 2
    else:
        assert session.expire() == 2
        late = background(lambda: taking.take_over(owner.name, owner.fence, HOUR))
        await_blocked(queue.conn, taking, session)
        session.conn.commit()
        with pytest.raises(LeaseLost):
            late.result(60)
        assert queue.ready("work", 5) == 2
    assert deadlocks(queue.conn) == ended


# Own tables for a topic.


@pytest.fixture
def tables(queue: TaskQueue) -> Iterator[None]:
    """At the end no topic has its own tables."""
    yield
    queue.conn.execute("RESET ALL")
    for topic in queue.topics():
        queue.shared_partition(topic, most=10**9)
        queue.drop_topic(topic)
    queue.drop_vacant_partitions()


CHANGES: dict[str, Callable[[TaskQueue], object]] = {
    "pause": lambda queue: queue.pause_topic("work"),
    "alter": lambda queue: queue.alter_topic("work", TopicPolicy()),
}
STEPS: dict[str, LiteralString] = {
    "close": "SELECT taskq.close_shared_tables('work', %s, '60 seconds')",
    "move": "SELECT taskq.move_to_own_tables('work', %s, '60 seconds')",
    "undo": "SELECT taskq.undo_partition_move('work', %s, '60 seconds')",
}


def begin_moving(mover: TaskQueue, step: str) -> object:
    """Carries a move of `work` out up to a step, and returns its token. Pushes to `work` wait for this session."""
    token = value(mover, "SELECT taskq.begin_partition_move('work', '1 second')")
    value(mover, "SELECT taskq.create_own_tables('work', %s, '1 second')", token)
    value(mover, "SELECT taskq.lock_pushes('work', '1 second')")
    if step != "close":
        assert value(mover, STEPS["close"], token) is True
    return token


def is_paused(queue: TaskQueue) -> object:
    return value(queue, "SELECT (taskq.policy('work')).paused")


def unlock_pushes(mover: TaskQueue) -> None:
    assert value(mover, "SELECT taskq.unlock_pushes((taskq.policy('work')).topic_id)") is True


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("step", STEPS)
def test_a_step_of_a_move_keeps_no_table_locked_while_a_change_of_the_topic_is_open(
    queue: TaskQueue,
    owner: Owner,
    session: TaskQueue,
    open_queue: OpenQueue,
    background: InBackground[object],
    step: str,
    change: str,
) -> None:
    """The step needs the topic's row, and the transaction then needs the tables."""
    queue.create_topic("other")
    queue.push("other", ["x"])
    queue.push("work", ["a"])
    mover, ended = alone(open_queue()), deadlocks(queue.conn)
    token = begin_moving(mover, step)
    CHANGES[change](session)
    stepped = background(lambda: value(mover, STEPS[step], token))
    await_standstill(queue.conn, mover)
    assert identifiers(session.poll("other", owner)) == ["x"]
    assert identifiers(hurry(queue).push("other", ["y"])) == ["y"]
    session.conn.commit()
    assert stepped.result(60) is True
    unlock_pushes(mover)
    assert mover.own_partition("work") is (step != "move")
    assert (states(queue), is_paused(queue)) == ([("a", State.READY)], change == "pause")
    assert deadlocks(queue.conn) == ended


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("step", STEPS)
def test_a_step_of_a_move_gives_way_to_a_transaction_that_changed_the_topic_and_waits_to_push(
    queue: TaskQueue,
    session: TaskQueue,
    open_queue: OpenQueue,
    background: InBackground[object],
    step: str,
    change: str,
) -> None:
    """The step needs the topic's row, and the transaction the lock of pushes, which the session of the move holds."""
    mover, ended = alone(open_queue()), deadlocks(queue.conn)
    token = begin_moving(mover, step)
    CHANGES[change](session)
    stepped = background(lambda: value(mover, STEPS[step], token))
    await_standstill(queue.conn, mover)
    pushed = background(lambda: session.push("work", ["a"]))
    if step == "undo":
        with pytest.raises(
            psycopg.Error, match="uses the tables of the queue waits for this one: repeat this after its end"
        ):
            stepped.result(60)
    else:
        assert stepped.result(60) is False
    unlock_pushes(mover)
    if step == "close":
        pushed.result(60)
        session.conn.commit()
    else:  # the shared tables are closed
        with pytest.raises(TaskQueueError, match="this topic is being moved to its own tables: repeat this"):
            pushed.result(60)
        session.conn.rollback()
    assert mover.own_partition("work") is True
    assert states(queue) == ([("a", State.READY)] if step == "close" else [])
    assert deadlocks(queue.conn) == ended


@pytest.mark.usefixtures("tables")
def test_a_move_gives_way_to_a_transaction_that_removed_a_task_of_the_topic_and_waits_to_push(
    queue: TaskQueue, session: TaskQueue, open_queue: OpenQueue, background: InBackground[object]
) -> None:
    """The move needs all rows of the topic, and the transaction the lock of pushes."""
    queue.push("work", ["a", "b"])
    mover, ended = alone(open_queue()), deadlocks(queue.conn)
    token = begin_moving(mover, "move")
    assert session.purge("work", state=State.READY, size=1) == 1
    moved = background(lambda: value(mover, STEPS["move"], token))
    pushed = background(lambda: session.push("work", ["c"]))
    assert moved.result(60) is False
    unlock_pushes(mover)
    with pytest.raises(TaskQueueError, match="this topic is being moved to its own tables: repeat this"):
        pushed.result(60)
    session.conn.rollback()
    assert mover.own_partition("work") is True
    assert states(queue) == [("a", State.READY), ("b", State.READY)]
    assert deadlocks(queue.conn) == ended


@pytest.mark.usefixtures("tables")
def test_a_move_gives_up_and_names_the_session_whose_change_of_the_topic_stays_open(
    queue: TaskQueue, session: TaskQueue, open_queue: OpenQueue
) -> None:
    session.pause_topic("work")
    with pytest.raises(TaskQueueError, match=f"session {session.conn.info.backend_pid} has changed topic 'work'"):
        alone(open_queue()).own_partition("work", timedelta(milliseconds=300))
    session.conn.rollback()
    assert is_paused(queue) is False
    assert queue.own_partition("work")
