"""Persistent workers: their stored state, on or off, which several processes follow."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskq.queue import State, TaskQueue, UnknownTopic
from airflow_provider_taskq.worker import PersistentWorker
from tests.queue.conftest import states, until
from tests.worker.conftest import HOUR, MakeWorker

pytestmark = pytest.mark.promise("A worker under a stored name stays on or off across restarts")

MakePersistent = Callable[..., PersistentWorker]


@pytest.fixture
def make_persistent(make_worker: MakeWorker) -> Iterator[MakePersistent]:
    """Makes persistent workers named `mailer`, one for each simulated process."""
    made: list[PersistentWorker] = []

    def make(**options: Any) -> PersistentWorker:
        worker = make_worker(lambda _: None, **{"name": "mailer", **options})
        made.append(PersistentWorker(worker, check_every=HOUR))
        return made[-1]

    yield make
    for each in made:
        each.shutdown(timedelta(seconds=5))


def test_a_start_and_a_stop_are_stored(queue: TaskQueue, make_persistent: MakePersistent) -> None:
    persistent = make_persistent()
    assert queue.is_worker_active("mailer") is None
    assert persistent.start()
    assert queue.is_worker_active("mailer") is True
    assert not persistent.start()
    assert persistent.resume()
    assert queue.workers() == {"mailer": True}
    assert persistent.stop()
    assert queue.is_worker_active("mailer") is False
    assert not persistent.stop()
    assert queue.workers() == {"mailer": False}


def test_a_worker_that_was_on_is_on_again_after_a_restart(queue: TaskQueue, make_persistent: MakePersistent) -> None:
    before = make_persistent()
    before.start()
    assert before.shutdown()
    assert queue.is_worker_active("mailer") is True, "a shutdown does not change the stored state"
    after = make_persistent()
    assert after.initialize()
    assert after.is_active
    queue.deactivate_worker("mailer")
    off, unknown = make_persistent(), make_persistent(name="unknown")
    assert off.initialize()
    assert not unknown.initialize()
    assert not off.is_active
    assert not unknown.is_active


def test_a_run_that_cannot_start_leaves_no_thread(queue: TaskQueue, make_persistent: MakePersistent) -> None:
    queue.activate_worker("mailer")
    before = set(threading.enumerate())
    with pytest.raises(UnknownTopic):
        make_persistent(topic="nowhere").run()
    assert set(threading.enumerate()) == before


def test_workers_of_one_name_follow_each_other_by_notification(
    queue: TaskQueue, make_persistent: MakePersistent
) -> None:
    here, there, other = make_persistent(), make_persistent(), make_persistent(name="other")
    for each in (here, there, other):
        each.initialize()
    here.start()
    until(lambda: there.is_active)
    queue.push("work", ["a"])
    here.resume()
    until(lambda: states(queue) == [("a", State.SUCCEEDED)])
    there.stop()
    until(lambda: not here.is_active)
    assert queue.activate_worker("mailer") is False  # as an operator does
    until(lambda: here.is_active and there.is_active)
    assert not other.is_active
    assert queue.forget_worker("mailer")
    assert not queue.forget_worker("mailer")


def test_a_worker_follows_a_change_without_its_notification(queue: TaskQueue, make_persistent: MakePersistent) -> None:
    persistent = make_persistent()
    persistent.initialize()
    queue.conn.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    queue.activate_worker("mailer")
    until(lambda: persistent.is_active)
