from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_taskq.operators import TaskQExpireOperator
from airflow_provider_taskq.queue import State, TaskQueue, TopicPolicy
from tests.airflow.conftest import context_of
from tests.internals import lapse_lease

pytestmark = [
    pytest.mark.usefixtures("airflow_connection", "queue"),
    pytest.mark.promise("An operator does what its call of the queue does, in one transaction"),
]


def held(queue: TaskQueue, topic: str = "work", owner: str = "worker") -> None:
    """Push a task, and let an owner hold it."""
    queue.push(topic, ["a"])
    queue.claim(topic, queue.register(owner), 1)


def expire(**arguments: Any) -> dict[str, Any]:
    operator = TaskQExpireOperator(task_id="expire", **arguments)
    operator.render_template_fields(context_of())
    return operator.execute(context_of())


def test_expires_lapsed_leases_of_all_topics_by_policy(queue: TaskQueue, conn: psycopg.Connection) -> None:
    queue.create_topic("strict", TopicPolicy(on_expiry="expire"))
    held(queue)
    held(queue, "strict", "other")
    lapse_lease(conn)
    assert expire() == {"expired": 2}
    assert [queue.page(topic)[0].state for topic in ("work", "strict")] == [State.READY, State.EXPIRED]


def test_does_not_expire_a_running_lease(queue: TaskQueue) -> None:
    held(queue)
    assert expire() == {"expired": 0}
    assert queue.page("work")[0].state is State.ACTIVE


@pytest.mark.parametrize("grace", [timedelta(minutes=2), 120, "{{ 60 * 2 }}"])
def test_waits_for_the_grace(queue: TaskQueue, conn: psycopg.Connection, grace: Any) -> None:
    held(queue)
    lapse_lease(conn, ago=timedelta(minutes=1))
    assert expire(grace=grace) == {"expired": 0}
    lapse_lease(conn, ago=timedelta(minutes=3))
    assert expire(grace=grace) == {"expired": 1}
