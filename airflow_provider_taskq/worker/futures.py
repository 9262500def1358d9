"""Waits for a Future that a handler returned, which any thread may complete."""

import threading
from concurrent.futures import Future
from typing import Any, TypeVar

from airflow_provider_taskq.worker.batches import Batch

T = TypeVar("T")


def result_of(outcome: Any, batch: Batch, name: str) -> Any:
    """Returns the result of a Future once it is completed, and any other outcome as it is.

    Raises what the Future was completed with, and CancelledError if it was cancelled. If the worker gives up the batch
    meanwhile, the Future is cancelled and the wait ends with RuntimeError.
    """
    if not isinstance(outcome, Future):
        return outcome
    ended = threading.Event()

    def give_up() -> None:
        outcome.cancel()
        ended.set()

    outcome.add_done_callback(lambda _: ended.set())
    with batch.running(f"a Future of {name}", cancel=give_up):
        if batch.cancelled.is_set():  # before the worker could call give_up
            give_up()
        ended.wait()
    if not outcome.done():
        raise RuntimeError(f"the batch was given up before the Future of {name} was completed")
    return outcome.result()


def copy_outcome(ended: Future[T], future: Future[T]) -> None:
    """Completes a Future as another one ended: with its result or exception, or CancelledError if it was cancelled."""
    try:
        result = ended.result()
    except BaseException as error:  # noqa: BLE001 -- it is raised where the Future is waited for
        future.set_exception(error)
    else:
        future.set_result(result)
