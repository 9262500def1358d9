"""Waits: which results end one. The schedule: how often the watcher checks."""

import pytest

from airflow_provider_taskq.queue import UnknownTopic
from airflow_provider_taskq.triggers.waits import NO_RESULT, JunctureWait, QueryResult, ReadyWait, StateWait
from airflow_provider_taskq.triggers.watcher import PollSchedule

pytestmark = pytest.mark.promise("A gate opens when its topic is ready, in every mode")

STATE = StateWait("work", ("a", "b"), frozenset({"SUCCEEDED"}), frozenset({"FAILED"}))
SUCCEEDED, FAILED, READY = QueryResult(6, None), QueryResult(3, None), QueryResult(1, None)


@pytest.mark.parametrize(
    ("wait", "seen", "outcome"),
    [
        (ReadyWait("work", 2), NO_RESULT, None),
        (ReadyWait("work", 2), QueryResult(1, 99.0), None),
        (ReadyWait("work", 2), QueryResult(2, None), 2),
        (ReadyWait("work", 2, max_wait=5), QueryResult(1, 4.9), None),
        (ReadyWait("work", 2, max_wait=5), QueryResult(1, 5.0), 1),
        (ReadyWait("work", 2, max_wait=0), QueryResult(1, 0.0), 1),
        (ReadyWait("work", 2, max_wait=5), QueryResult(0, 9.0), None),
        (JunctureWait("gate", "work", (("a",), ("b",))), NO_RESULT, None),
        (JunctureWait("gate", "work", (("a",), ("b",))), QueryResult(1, None), None),
        (JunctureWait("gate", "work", (("a",), ("b",))), QueryResult(0, None), 2),
    ],
)
def test_a_wait_ends_with_its_outcome(wait: ReadyWait | JunctureWait, seen: QueryResult, outcome: int | None) -> None:
    assert wait.outcome([seen]) == outcome


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [
        ((SUCCEEDED, NO_RESULT), None),
        ((SUCCEEDED, READY), None),
        ((SUCCEEDED, SUCCEEDED), {"a": "SUCCEEDED", "b": "SUCCEEDED"}),
        ((NO_RESULT, FAILED), {"a": None, "b": "FAILED"}),
    ],
)
def test_a_state_wait_ends_when_all_tasks_are_in_a_state_or_one_has_failed(
    seen: tuple[QueryResult, QueryResult], outcome: dict[str, str | None] | None
) -> None:
    assert STATE.outcome(seen) == outcome


def test_an_unknown_topic_ends_every_wait() -> None:
    state = StateWait("work", ("a",), STATE.states, STATE.failed_states)
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
