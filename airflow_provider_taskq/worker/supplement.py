"""The supplement: values that the steps of a batch share, each under its class, for one task or the whole batch."""

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

from airflow_provider_taskq.queue import Task

T = TypeVar("T")

_Key = tuple[type[Any], Task | None, Hashable]


class SupplementError(LookupError):
    """A value was registered twice, or it is missing."""


class _Value(Future[Any]):
    """A value that is there, or that a thread makes now."""

    def __init__(self) -> None:
        super().__init__()
        self._maker = threading.get_ident()

    def get(self, key: _Key) -> Any:
        """Wait for the value. A thread that waits for the value that it makes itself would wait forever."""
        if not self.done() and self._maker == threading.get_ident():
            raise SupplementError(f"{_named(key)} is requested by the function that makes it")
        return self.result()


class Supplement:
    """Values by class, task (None for the whole batch) and qualifier. Threads may share it; processes cannot."""

    def __init__(self) -> None:
        self._values: dict[_Key, _Value] = {}
        self._lock = threading.Lock()

    def register(self, kind: type[T], value: T, task: Task | None = None, qualifier: Hashable = None) -> None:
        """Store a value of `task` or of the batch. Raises SupplementError if there is one already."""
        key = (kind, task, qualifier)
        with self._lock:
            if key in self._values:
                raise SupplementError(f"{_named(key)} is already registered")
            self._values[key] = _Value()
            self._values[key].set_result(value)

    def require(self, kind: type[T], task: Task | None = None, qualifier: Hashable = None) -> T:
        """Return a stored value. Raises SupplementError if there is none."""
        key = (kind, task, qualifier)
        with self._lock:
            found = self._values.get(key)
        if found is None:
            raise SupplementError(f"{_named(key)} was not registered")
        return found.get(key)  # type: ignore[no-any-return]  # an instance of the class in the key

    def probe(self, kind: type[T], task: Task | None = None, qualifier: Hashable = None) -> T | None:
        """Return a stored value, or None if there is none yet. Never wait."""
        with self._lock:
            found = self._values.get((kind, task, qualifier))
        return found.result() if found is not None and found.done() else None

    def suggest(self, kind: type[T], make: Callable[[], T], task: Task | None = None, qualifier: Hashable = None) -> T:
        """Return a stored value. Call `make` if there is none; concurrent calls share its value, or its error."""
        key, made = (kind, task, qualifier), _Value()
        with self._lock:
            found = self._values.setdefault(key, made)
        if found is not made:
            return found.get(key)  # type: ignore[no-any-return]
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                del self._values[key]
            made.set_exception(error)
            raise
        made.set_result(value)
        return value


def _named(key: _Key) -> str:
    kind, task, qualifier = key
    of = f" of task {task.sequence}" if task else ""
    return f"{kind.__name__}{of}" + ("" if qualifier is None else f" ({qualifier!r})")
