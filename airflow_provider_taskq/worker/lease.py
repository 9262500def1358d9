"""A thread's time as an owner: the lease that it holds, and the batches that it holds under it."""

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from airflow_provider_taskq.queue import LeaseLost, Owner
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.limiter import Token


class Hand(Protocol):
    """A thread that handles batches."""

    def hand_over(self, run: "Run", to_fail: bool) -> None:
        """Lets another thread take its place, as this one is stuck in a batch, which may still have to be FAILED."""


class Run:
    """A batch in flight. Whoever claims it first decides what becomes of it: its handler, or those who give it up."""

    def __init__(self, batch: Batch, tenure: "Lease", token: Token, trace: Any = None) -> None:
        self.batch = batch
        self.tenure = tenure
        self.token = token
        self.trace = trace
        self.hand: Hand | None = None  # the thread that handles it
        self.began: float | None = None  # when its handler did, by the monotonic clock
        self.reason: BaseException | None = None  # why it was given up, if it was
        self._claimed = threading.Lock()

    def claim(self) -> bool:
        """Whether the caller is the first, and so the one to end this batch."""
        return self._claimed.acquire(blocking=False)

    def give_up(self, reason: BaseException) -> bool:
        """Takes the batch from its handler, whose word will not count; False where it came first."""
        if not self.claim():
            return False
        self.reason = reason
        self.batch.cancel()
        return True


class Lease:
    """An owner, for as long as it is one. Once lost it stays lost, and so are its batches.

    `since`: when the registration began, by the monotonic clock, as the lease has run since then; None: just now.
    """

    def __init__(self, owner: Owner, on_give_up: Callable[["Run"], None], since: float | None = None) -> None:
        self.owner = owner
        self._on_give_up = on_give_up
        self.lost: LeaseLost | None = None
        self._runs: dict[int, Run] = {}
        self._lock = threading.Lock()
        self._lease = owner.lease.total_seconds()
        self._alive = time.monotonic() if since is None else since

    def enter(self, run: Run) -> None:
        """One more batch is held; given up at once where the lease is lost already."""
        with self._lock:
            self._runs[id(run)] = run
            lost = self.lost
        if lost is not None:
            self.give_up(run, lost)

    def give_up(self, run: Run, reason: BaseException) -> bool:
        """Takes a batch from its handler, and tells of it; False where its handler came first."""
        if not run.give_up(reason):
            return False
        self._on_give_up(run)
        return True

    def leave(self, run: Run) -> None:
        """A batch is held no more."""
        with self._lock:
            self._runs.pop(id(run), None)

    def runs(self) -> list[Run]:
        """The batches that are held now."""
        with self._lock:
            return list(self._runs.values())

    def lose(self, error: LeaseLost) -> bool:
        """Gives up all batches: others hold their tasks now, or may soon. False where that is known."""
        with self._lock:
            if self.lost is not None:
                return False
            self.lost = error
        for run in self.runs():
            self.give_up(run, error)
        return True

    def extended(self, began: float) -> None:
        """A heartbeat that began then, by the monotonic clock, reached the queue."""
        self._alive = began

    def has_lapsed(self) -> LeaseLost | None:
        """The loss that this machine's clock tells of: a lease that nobody could extend in time, if this is one.

        It may be there still, but nobody can tell; others may have taken it.
        """
        if time.monotonic() - self._alive < self._lease:
            return None
        return LeaseLost(f"no heartbeat of owner {self.owner.name!r} reached the queue within its lease")
