"""Futures of calls and of batches: a Future that is cancelled gives its call up, also while the call runs."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar, cast

T = TypeVar("T")


def complete(future: Future[T], call: Callable[[], T]) -> None:
    """Complete a Future with what a call returns or raises. Do nothing more if the Future was cancelled meanwhile."""
    outcome = attempt(call)
    with suppress(InvalidStateError):
        if isinstance(outcome, _Failed):
            future.set_exception(outcome.exception())
        else:
            future.set_result(cast("T", outcome))


class _Failed(Future[Any]):
    """A Future of a call that has raised an error."""


def attempt(call: Callable[[], T]) -> "T | Future[Any]":
    """Return what a call returns, or a Future of the error that it raises: also of SystemExit."""
    try:
        return call()
    except BaseException as error:  # noqa: BLE001 -- Future.result() raises it
        failed = _Failed()
        failed.set_exception(error)
        return failed


def on_cancel(future: Future[Any], call: Callable[[], object]) -> None:
    """Call a function when the Future is cancelled, at once if it is cancelled already."""
    future.add_done_callback(lambda ended: call() if ended.cancelled() else None)


def final(outcome: Any) -> Any:
    """Return the result of a Future that is done, which may be such a Future itself, or any other outcome as it is."""
    while isinstance(outcome, Future):
        outcome = outcome.result(0)
    return outcome


def then(outcomes: Iterable[Any], finish: Callable[[], T]) -> T | Future[T]:
    """Return `finish()`, or a Future of it if some outcomes are Futures that are not done.

    The result of a Future may be another Future, which must be done, too. If the returned Future is cancelled, all of
    them are.
    """
    waiting = [pending for outcome in outcomes if (pending := _pending(outcome)) is not None]
    if not waiting:
        return finish()
    whole: Future[T] = Future()
    left, lock = [len(waiting)], threading.Lock()

    def follow(future: Future[Any]) -> None:
        on_cancel(whole, future.cancel)
        future.add_done_callback(ended)

    def ended(future: Future[Any]) -> None:
        if (pending := _pending(future)) is not None:
            follow(pending)
            return
        with lock:
            left[0] -= 1
            is_last = not left[0]
        if is_last and not whole.done():
            complete(whole, finish)

    for future in waiting:
        follow(future)
    return whole


def _pending(outcome: Any) -> Future[Any] | None:
    """Return the first Future that is not done, of an outcome and the results of its Future."""
    while isinstance(outcome, Future):
        if not outcome.done():
            return outcome
        if outcome.cancelled() or outcome.exception() is not None:
            return None
        outcome = outcome.result()
    return None
