"""What the steps of a batch share: values by class, of one task or of the whole batch, safe to use from any thread."""

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

from airflow_provider_taskq.queue import Task

T = TypeVar("T")

_Key = tuple[type[Any], Task | None, Hashable]


class SupplementError(LookupError):
    """A value that was registered twice, or that nobody registered."""


class Supplement:
    """Values by class, task (None: the whole batch) and qualifier. Lives as long as its batch, in this process only."""

    def __init__(self) -> None:
        self._values: dict[_Key, Future[Any]] = {}
        self._lock = threading.Lock()
        self._makers: dict[_Key, int] = {}

    def register(self, kind: type[T], value: T, task: Task | None = None, qualifier: Hashable = None) -> None:
        """Keeps a value; SupplementError where there is one already."""
        key = (kind, task, qualifier)
        with self._lock:
            if key in self._values:
                raise SupplementError(f"{_named(key)} is registered already")
            self._values[key] = Future()
            self._values[key].set_result(value)

    def require(self, kind: type[T], task: Task | None = None, qualifier: Hashable = None) -> T:
        """The value; SupplementError where there is none."""
        key = (kind, task, qualifier)
        with self._lock:
            found = self._values.get(key)
        if found is None:
            raise SupplementError(f"{_named(key)} was not registered")
        self._refuse_own(key, found)
        return found.result()  # type: ignore[no-any-return]  # by the key's own class

    def probe(self, kind: type[T], task: Task | None = None, qualifier: Hashable = None) -> T | None:
        """The value, or None where there is none yet; waits for nobody."""
        with self._lock:
            found = self._values.get((kind, task, qualifier))
        return found.result() if found is not None and found.done() else None

    def suggest(self, kind: type[T], make: Callable[[], T], task: Task | None = None, qualifier: Hashable = None) -> T:
        """The value, made by `make` where there is none: once, whoever asks at the same time waits for it.

        Where `make` raises, all who wait get its error, and the next who asks makes it anew.
        """
        key = (kind, task, qualifier)
        with self._lock:
            found = self._values.get(key)
            if found is None:
                found = self._values[key] = Future()
                self._makers[key] = threading.get_ident()
                mine = True
            else:
                mine = False
        if mine:
            self._make(key, found, make)
        else:
            self._refuse_own(key, found)
        return found.result()  # type: ignore[no-any-return]

    def _make(self, key: _Key, place: Future[Any], make: Callable[[], Any]) -> None:
        """Fills a place that this thread has taken."""
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                del self._values[key], self._makers[key]
            place.set_exception(error)
            raise
        with self._lock:
            del self._makers[key]
        place.set_result(value)

    def _refuse_own(self, key: _Key, place: Future[Any]) -> None:
        """Refuses to wait for a value that this very thread is making."""
        if not place.done() and self._makers.get(key) == threading.get_ident():
            raise SupplementError(f"{_named(key)} is asked for while it is being made")


def _named(key: _Key) -> str:
    """A value's key in words."""
    kind, task, qualifier = key
    of = f" of task {task.sequence}" if task else ""
    return f"{kind.__name__}{of}" + ("" if qualifier is None else f" ({qualifier!r})")
