"""Going round: what all threads do that poll, again and again until their shift stops."""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from airflow_provider_taskq.queue import LeaseLost, Task
from airflow_provider_taskq.worker.finishing import Finisher
from airflow_provider_taskq.worker.lease import Run
from airflow_provider_taskq.worker.limiter import Token
from airflow_provider_taskq.worker.patience import BackOff
from airflow_provider_taskq.worker.polling import Poller

if TYPE_CHECKING:
    from airflow_provider_taskq.worker.runtime import WorkerRuntime

log = logging.getLogger(__name__)

LOOKS = 20  # in about ten seconds


class Rounds(ABC):
    """A thread that polls: with a session and a lease of its own, and with growing pauses while something fails."""

    def __init__(self, shift: "WorkerRuntime") -> None:
        self._shift = shift
        self._session = shift.session()
        self._poller = Poller(shift, self._session, shift.owner_name())
        self._finisher = Finisher(shift, self._session)
        self._back_off = BackOff()
        self._replaced = False
        self._unanswered = False  # whether what the last poll took is unknown
        self._missed = False  # whether it is to look again soon, though it found nothing
        self._again = BackOff(0.01, 1.0)
        self._took = 0.0  # seconds that the last poll took
        self.thread = threading.Thread(target=self._go_round, name=f"taskq {shift.settings.name}", daemon=True)

    @abstractmethod
    def _room(self) -> int:
        """How many tasks to poll, waited for; 0 where it is to stop."""

    @abstractmethod
    def _take(self, run: Run) -> None:
        """Does with a batch what is to be done."""

    def _next(self, size: int) -> Sequence[Task]:
        """The next tasks."""
        return self._poller.poll(size)

    def _own(self) -> int:
        """How many tasks the next poll completes along."""
        return 0

    def _begin(self) -> None:  # noqa: B027 -- nothing, for most
        """What comes first."""

    def _end(self) -> None:  # noqa: B027
        """What comes last."""

    def _go_round(self) -> None:
        """What the thread does."""
        try:
            self._guarded(self._begin)
            while not self._shift.stopping.is_set() and not self._replaced:
                calls = self._shift.pause.calls()
                if self._guarded(self._once) == 0:
                    self._shift.found_nothing()
                    self._wait(calls)
            self._guarded(self._end)
            if self._shift.over.is_set():  # nobody gives back any more what this one took last
                self._guarded(self._poller.leave)
        finally:
            if self._unanswered:
                self._shift.counters.poll_ended(None)
            self._session.close()
            self._shift.left(self)

    def _once(self) -> int:
        """Polls, and takes what it finds; returns how many tasks, or -1 where it was not to poll."""
        shift = self._shift
        self._poller.tenure()
        shift.begun.set()
        if shift.stopping.is_set():  # while there was no lease, which may take long
            return -1
        size = self._room()
        token = shift.token() if size else None
        if token is None:
            return -1
        try:
            tasks, run = self._ask(size, token)
            if run is not None:
                self._take(run)
        except BaseException:
            token.release()
            raise
        if tasks:
            self._again.reset()
        else:
            token.release()
        self._back_off.reset()
        return len(tasks)

    def _ask(self, size: int, token: Token) -> tuple[Sequence[Task], Run | None]:
        """Polls, and tells whether there is nothing to do any more. A poll without an answer is one with the next."""
        shift = self._shift
        quiet = shift.counters.poll_begins(self._own(), again=self._unanswered)
        self._unanswered = True
        asked = time.monotonic()
        tasks = self._next(size)
        self._took = time.monotonic() - asked
        run = shift.begin(tasks, self._poller.tenure(), token) if tasks else None
        missed = not tasks and self._has_missed(quiet)
        self._unanswered = False
        quiet_now = shift.counters.poll_ended(quiet)
        if not tasks and not missed and quiet_now:
            shift.idle.set()
        self._missed = missed or (quiet_now is False and not shift.idle.is_set())
        return tasks, run

    def _has_missed(self, quiet: int | None) -> bool:
        """Whether to look again where all else is over: not for ever, as somebody's transaction may stay open."""
        shift = self._shift
        if shift.idle.is_set() or not shift.counters.is_quiet(quiet) or not self._poller.has_missed():
            return False
        if self._again.failures < LOOKS:
            return True
        to = shift.settings
        log.warning("%r leaves what is ready in topic %r: a transaction that stays open keeps it", to.name, to.topic)
        return False

    def _wait(self, calls: int) -> None:
        """Waits after a poll that found nothing: not for long where there is something, or nobody knows."""
        if self._missed:
            self._shift.pause.rest(calls, self._again.next())
        else:
            self._again.reset()
            self._shift.pause.wait(calls, self._took)

    def _guarded(self, step: Callable[[], int | None]) -> int | None:
        """Does one step. A worker goes on, whatever goes wrong: it is told, and followed by a pause."""
        calls = self._shift.pause.calls()
        try:
            return step()
        except Exception as error:  # noqa: BLE001 -- whatever it is
            failed = self._looked_after(error)
        if failed is not None:
            self._shift.telling.on_fatal(failed)
            self._shift.pause.rest(calls, self._back_off.next())
        return None

    def _looked_after(self, error: Exception) -> Exception | None:
        """What is wrong still after a lease was looked after, if that is what was wrong."""
        if not isinstance(error, LeaseLost):
            return error
        try:
            return self._poller.look_after_lease(error)
        except Exception as another:  # noqa: BLE001 -- such as a lost connection
            return another
