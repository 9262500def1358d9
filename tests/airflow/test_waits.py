"""Waits: when what was seen ends one; and how often is looked."""

import pytest

from airflow_provider_taskq.queue import UnknownTopic
from airflow_provider_taskq.triggers.pace import IDLE, Pace
from airflow_provider_taskq.triggers.waits import NOTHING, JunctureWait, ReadyWait, Seen, StateWait

STATE = StateWait("work", ("a", "b"), frozenset({"SUCCEEDED"}), frozenset({"FAILED"}))
SUCCEEDED, FAILED, READY = Seen(6, None), Seen(3, None), Seen(1, None)


@pytest.mark.parametrize(
    ("wait", "seen", "outcome"),
    [
        (ReadyWait("work", 2), NOTHING, None),
        (ReadyWait("work", 2), Seen(1, 99.0), None),
        (ReadyWait("work", 2), Seen(2, None), 2),
        (ReadyWait("work", 2, max_wait=5), Seen(1, 4.9), None),
        (ReadyWait("work", 2, max_wait=5), Seen(1, 5.0), 1),
        (ReadyWait("work", 2, max_wait=0), Seen(1, 0.0), 1),
        (ReadyWait("work", 2, max_wait=5), Seen(0, 9.0), None),
        (JunctureWait("gate", "work", (("a",), ("b",))), NOTHING, None),
        (JunctureWait("gate", "work", (("a",), ("b",))), Seen(1, None), None),
        (JunctureWait("gate", "work", (("a",), ("b",))), Seen(0, None), 2),
    ],
)
def test_a_wait_ends_with_its_outcome(wait: ReadyWait | JunctureWait, seen: Seen, outcome: int | None) -> None:
    assert wait.outcome([seen]) == outcome


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [
        ((SUCCEEDED, NOTHING), None),
        ((SUCCEEDED, READY), None),
        ((SUCCEEDED, SUCCEEDED), {"a": "SUCCEEDED", "b": "SUCCEEDED"}),
        ((NOTHING, FAILED), {"a": None, "b": "FAILED"}),
    ],
)
def test_a_state_ends_a_wait_when_all_have_come_or_one_has_failed(
    seen: tuple[Seen, Seen], outcome: dict[str, str | None] | None
) -> None:
    assert STATE.outcome(seen) == outcome


def test_an_unknown_topic_is_refused_by_every_wait() -> None:
    state = StateWait("work", ("a",), STATE.states, STATE.failed_states)
    for wait in (ReadyWait("work"), JunctureWait("gate", "work", (("a",),)), state):
        with pytest.raises(UnknownTopic, match="topic 'work' does not exist; create it with: taskq topics create work"):
            wait.outcome([Seen(-1, None)])
        with pytest.raises(UnknownTopic, match="topic 'work' was dropped; create it again with: taskq topics create"):
            wait.outcome([Seen(-1, None, known=True)])


def test_pace_slows_down_while_idle_and_backs_off_while_it_fails() -> None:
    pace = Pace()
    pace.looked(0, 0.1, eventful=True, took=0)
    assert 0.08 <= pace.due <= 0.12
    for _ in range(20):
        pace.looked(0, 0.1, eventful=False, took=0)
    assert 0.8 * IDLE <= pace.due <= 1.2 * IDLE
    assert pace.hasten(0, 0.1)
    pace.looked(0, 0.1, eventful=True, took=2)
    assert pace.due == 8, "looks take a fifth of the time at most"
    dues = []
    for _ in range(20):
        pace.failed(0)
        dues.append(pace.due)
    assert dues[0] < 1
    assert max(dues) <= 12
    assert not pace.hasten(0, 0.1), "nobody new hurries a server that is down"
