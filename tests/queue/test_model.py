"""The queue compared with a model in memory, over random sequences of calls."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import rule, run_state_machine_as_test

from tests.queue.machine.driver import steps_of
from tests.queue.machine.operating import Reading
from tests.queue.machine.owning import Owning

pytestmark = [
    pytest.mark.promise("Nothing is lost"),
    pytest.mark.promise("An older task changes as the table of insertions says"),
    pytest.mark.promise("An `offer` leaves at most one waiting task of an identifier"),
    pytest.mark.promise("A `drop` removes the waiting tasks of an identifier and nothing else"),
    pytest.mark.promise("A task that is reset, released or redelivered gets its old place back"),
    pytest.mark.promise("A failure with attempts left goes back to READY, due after the delay of the policy"),
    pytest.mark.promise("While the retries of a topic fail, one is tried at a time, if its policy has `probe`"),
    pytest.mark.promise("A revived task starts again as it was pushed"),
    pytest.mark.promise("A reassignment changes the result of an ended task, and nothing else"),
    pytest.mark.promise("A purge removes ended tasks with all that is stored of them"),
    pytest.mark.promise("Tasks, pages, counts and results are read as they are"),
]

QUICK = settings(
    max_examples=50,
    stateful_step_count=40,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, max_examples=int(os.environ.get("TASKQ_MODEL_EXAMPLES", "40")), stateful_step_count=60)


class Verbs(Owning, Reading):
    """All steps."""


class QueueMachine(Verbs):
    """Runs random steps."""

    @rule(step=steps_of(Verbs))
    def take(self, step: tuple[str, dict[str, Any]]) -> None:
        name, values = step
        getattr(self, name)(**values)


@pytest.fixture
def machine(dsn: str) -> Iterator[type[QueueMachine]]:
    yield type("Machine", (QueueMachine,), {"dsn": dsn})  # noqa: PT022 - a class for this test's database


@pytest.mark.slow
def test_the_queue_agrees_with_its_model(machine: type[QueueMachine]) -> None:
    run_state_machine_as_test(machine, settings=QUICK)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.timeout(0)
def test_the_queue_agrees_with_its_model_for_long(machine: type[QueueMachine]) -> None:
    run_state_machine_as_test(machine, settings=LONG)
