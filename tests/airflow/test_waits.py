"""What every wait does without its topic, and the schedule by which the watcher checks."""

import pytest

from airflow_provider_taskq.queue import UnknownTopic
from airflow_provider_taskq.triggers.waits import JunctureWait, QueryResult, ReadyWait, StateWait
from airflow_provider_taskq.triggers.watcher import PollSchedule

pytestmark = pytest.mark.promise("A gate opens when its topic is ready, in every mode")


def test_an_unknown_topic_ends_every_wait() -> None:
    state = StateWait("work", ("a",), frozenset({"SUCCEEDED"}), frozenset({"FAILED"}))
    for wait in (ReadyWait("work"), JunctureWait("gate", "work", (("a",),)), state):
        with pytest.raises(UnknownTopic, match="topic 'work' does not exist; create it with: taskq topics create work"):
            wait.outcome([QueryResult(-1, None)])
        with pytest.raises(UnknownTopic, match="topic 'work' was dropped; create it again with: taskq topics create"):
            wait.outcome([QueryResult(-1, None, topic_existed=True)])


def test_the_schedule_slows_down_while_idle_and_backs_off_while_it_fails() -> None:
    schedule = PollSchedule()
    schedule.checked(0, 0.1, eventful=True, took=0)
    assert 0.08 <= schedule.due <= 0.12
    for _ in range(20):
        schedule.checked(0, 0.1, eventful=False, took=0)
    assert 0.8 * PollSchedule.IDLE_INTERVAL <= schedule.due <= 1.2 * PollSchedule.IDLE_INTERVAL
    assert schedule.hasten(0, 0.1)
    schedule.checked(0, 0.1, eventful=True, took=2)
    assert schedule.due == 8, "checks take at most a fifth of the time"
    dues = []
    for _ in range(20):
        schedule.failed(0)
        dues.append(schedule.due)
    assert dues[0] < 1
    assert max(dues) <= 12
    assert not schedule.hasten(0, 0.1), "a new wait does not hurry a server that is down"
