"""The error of a deadlock. The steps that lead to one are in deadlocks.spec, and those that do not in moves.spec."""

import pickle

import psycopg
import pytest

from airflow_provider_taskq.queue import Deadlock, TaskQueueError
from airflow_provider_taskq.queue.errors import is_transient, to_queue_error, translate_errors

pytestmark = pytest.mark.promise("A call that raises an error has changed nothing")


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
