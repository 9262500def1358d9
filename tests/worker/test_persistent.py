"""Persistent workers: their stored state, on or off, which several processes follow."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskq.queue import TaskQueue, UnknownTopic
from airflow_provider_taskq.worker import PersistentWorker
from tests.queue.conftest import until
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


def test_a_worker_that_was_on_is_on_again_after_a_restart(queue: TaskQueue, make_persistent: MakePersistent) -> None:
    before = make_persistent()
    assert not before.initialize(), "no state is stored"
    queue.activate_worker("mailer")
    until(lambda: before._worker.is_active)
    assert before.shutdown()
    assert queue.is_worker_active("mailer") is True, "a shutdown does not change the stored state"
    after = make_persistent()
    assert after.initialize()
    assert after._worker.is_active
    queue.deactivate_worker("mailer")
    off, unknown = make_persistent(), make_persistent(name="unknown")
    assert off.initialize()
    assert not unknown.initialize()
    assert not off._worker.is_active
    assert not unknown._worker.is_active


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
    for _ in range(2):
        queue.activate_worker("mailer")
        until(lambda: here._worker.is_active and there._worker.is_active)
        queue.deactivate_worker("mailer")
        until(lambda: not here._worker.is_active and not there._worker.is_active)
    assert not other._worker.is_active
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
    until(lambda: persistent._worker.is_active)
