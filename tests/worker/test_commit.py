"""The committing transaction: commit hooks, follow-ups, and when all of it is undone."""

import threading
from collections.abc import Callable, Mapping

import pytest

from airflow_provider_taskq.queue import (
    Decision,
    Insertion,
    Junction,
    LeaseLost,
    NewTask,
    Owner,
    Result,
    State,
    Task,
    TaskQueue,
    UnknownTopic,
)
from airflow_provider_taskq.worker import Batch, batch, commit_batch, each, tagged
from tests.queue.conftest import identifiers, known, states, until
from tests.worker.conftest import MakeWorker

SUCCESS = Decision(Result.SUCCESS)
FAILURE = Decision(Result.FAILURE)


Effects = Callable[[], list[str]]


@pytest.fixture(name="batch")
def two_tasks(queue: TaskQueue, owner: Owner) -> Batch:
    """Two held tasks, and a topic for what follows."""
    queue.create_topic("mail")
    queue.push("work", ["a", "b"])
    return Batch(queue.poll("work", owner, 2))


def test_participants_write_in_the_transaction_that_completes(
    queue: TaskQueue, owner: Owner, batch: Batch, effects: Effects
) -> None:
    def write(own: TaskQueue, decisions: Mapping[Task, Decision]) -> None:
        own.conn.cursor().executemany(
            "INSERT INTO effect (identifier) VALUES (%s)", [(each.identifier,) for each in decisions]
        )

    batch.in_commit(write)
    commit_batch(queue, owner, batch, dict.fromkeys(batch.tasks, SUCCESS))
    assert effects() == ["a", "b"]
    assert states(queue) == [("a", State.SUCCEEDED), ("b", State.SUCCEEDED)]


def test_without_a_lease_nothing_is_committed(queue: TaskQueue, owner: Owner, batch: Batch, effects: Effects) -> None:
    called: list[str] = []

    def write(own: TaskQueue, _: Mapping[Task, Decision]) -> None:
        own.conn.execute("INSERT INTO effect (identifier) VALUES ('x')")

    batch.in_commit(write)
    batch.push(batch.tasks[0], "mail", ["m"])
    batch.after_commit(lambda: called.append("after"))
    queue.register(owner.name)
    with pytest.raises(LeaseLost):
        commit_batch(queue, owner, batch, dict.fromkeys(batch.tasks, SUCCESS))
    assert (effects(), states(queue, "mail"), called) == ([], [], [])


def test_decisions_of_participants_are_merged_by_priority(queue: TaskQueue, owner: Owner, batch: Batch) -> None:
    a, b = batch.tasks
    batch.in_commit(lambda *_: {a: Decision(Result.SUSPENSION), b: Decision(Result.SUCCESS, "noted")})
    batch.in_commit(lambda _, decisions: {task: Decision(Result.FILTER) for task in decisions})
    stands = commit_batch(queue, owner, batch, {a: SUCCESS, b: SUCCESS})
    assert [stands[task].result for task in batch.tasks] == [Result.SUSPENSION, Result.FILTER]
    assert stands[b].message == "noted"
    assert states(queue) == [("a", State.SUSPENDED), ("b", State.FILTERED)]


def test_a_participant_that_fails_leaves_nothing_and_fails_its_tasks(
    queue: TaskQueue, owner: Owner, batch: Batch, effects: Effects
) -> None:
    a, b = batch.tasks

    def half(own: TaskQueue, decisions: Mapping[Task, Decision]) -> None:
        own.conn.execute("INSERT INTO effect (identifier) VALUES ('half')")
        assert list(decisions) == [a]
        own.conn.execute("SELECT 1 / 0")

    batch.in_commit(half, a)
    commit_batch(queue, owner, batch, {a: SUCCESS, b: SUCCESS})
    assert effects() == []
    assert states(queue) == [("a", State.FAILED), ("b", State.SUCCEEDED)]
    assert "DivisionByZero" in (known(queue, a).error or "")


def test_a_participant_that_leaves_a_task_open_fails_its_tasks(queue: TaskQueue, owner: Owner, batch: Batch) -> None:
    batch.in_commit(lambda *_: {batch.tasks[0]: SUCCESS})
    commit_batch(queue, owner, batch, dict.fromkeys(batch.tasks, SUCCESS))
    assert [state for _, state in states(queue)] == [State.FAILED] * 2
    assert "made no decision on sequence" in (known(queue, batch.tasks[0]).error or "")


def test_new_tasks_follow_continued_tasks_only(queue: TaskQueue, owner: Owner, batch: Batch) -> None:
    a, b = batch.tasks
    batch.push(a, "mail", ["follows a", NewTask("later", 1)])
    batch.push(b, "mail", ["follows b"])
    batch.push(a, "mail", ["follows a"], Insertion.SUPERSEDE)
    commit_batch(queue, owner, batch, {a: SUCCESS, b: FAILURE})
    assert states(queue, "mail") == [
        ("follows a", State.REDUNDANT),
        ("later", State.READY),
        ("follows a", State.READY),
    ]


def test_a_failure_that_is_continued_is_followed_and_a_success_that_is_not_is_not(
    queue: TaskQueue, owner: Owner, batch: Batch
) -> None:
    a, b = batch.tasks
    batch.push(a, "mail", ["follows a"])
    batch.push(b, "mail", ["follows b"])
    commit_batch(
        queue, owner, batch, {a: Decision(Result.FAILURE, continued=True), b: Decision(Result.SUCCESS, continued=False)}
    )
    assert states(queue, "mail") == [("follows a", State.READY)]


def test_junctions_come_after_pushes_and_for_continued_tasks_only(queue: TaskQueue, owner: Owner, batch: Batch) -> None:
    a, b = batch.tasks
    batch.junction(a, "mail", [["m", "n"]])
    batch.junction(b, "mail", [["o"]], Junction.ETERNAL)
    batch.push(a, "mail", [NewTask("m", suspended=True), NewTask("n", suspended=True), NewTask("o", suspended=True)])
    commit_batch(queue, owner, batch, {a: SUCCESS, b: FAILURE})
    assert states(queue, "mail") == [("m", State.READY), ("n", State.READY), ("o", State.SUSPENDED)]


def test_a_follow_up_that_is_refused_undoes_it_all(queue: TaskQueue, owner: Owner, batch: Batch) -> None:
    batch.push(batch.tasks[0], "mail", ["m"])
    batch.push(batch.tasks[0], "none", ["n"])
    with pytest.raises(UnknownTopic):
        commit_batch(queue, owner, batch, dict.fromkeys(batch.tasks, SUCCESS))
    assert states(queue, "mail") == []
    assert identifiers(queue.held(owner)) == ["a", "b"]


def test_what_comes_after_a_commit_sees_it_and_may_fail(queue: TaskQueue, owner: Owner, batch: Batch) -> None:
    seen: list[list[tuple[str, State]]] = []

    def fail() -> None:
        raise ZeroDivisionError

    batch.after_commit(fail)
    batch.after_commit(lambda: seen.append(states(queue)))
    commit_batch(queue, owner, batch, dict.fromkeys(batch.tasks, SUCCESS))
    assert seen == [[("a", State.SUCCEEDED), ("b", State.SUCCEEDED)]]


def test_workers_of_the_topics_that_got_something_are_woken(queue: TaskQueue, make_worker: MakeWorker) -> None:
    queue.create_topic("mail")
    sent = threading.Event()

    def pass_on(task: Task, batch: Batch) -> None:
        batch.push(task, "mail", [NewTask("m", reference="x")])

    mailer = make_worker(lambda _: sent.set(), topic="mail")
    mailer.start()
    until(lambda: _listeners(queue) == 1)
    queue.push("work", ["a"])
    make_worker(each(pass_on), rewrite=tagged, listen=False).start()
    assert sent.wait(10)
    until(lambda: states(queue, "mail") == [("m", State.SUCCEEDED)])
    [mail] = queue.page("mail")
    [parent] = queue.page("work")
    assert mail.reference == str(parent.sequence)


def _listeners(queue: TaskQueue) -> int:
    found = queue.conn.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
    ).fetchone()
    return int(found[0]) if found else 0


def test_a_batch_in_a_worker_commits_its_effects_once(
    queue: TaskQueue, effects: Effects, make_worker: MakeWorker
) -> None:
    queue.push("work", [f"t{number}" for number in range(50)])

    def handle(batch: Batch) -> None:
        def write(own: TaskQueue, decisions: Mapping[Task, Decision]) -> None:
            rows = [(task.identifier,) for task, decision in decisions.items() if decision.continued]
            own.conn.cursor().executemany("INSERT INTO effect (identifier) VALUES (%s)", rows)

        batch.in_commit(write)

    worker = make_worker(batch(handle), size=7, workers=2)
    worker.start()
    until(lambda: worker.statistics().succeeded == 50)
    assert effects() == sorted(f"t{number}" for number in range(50))
