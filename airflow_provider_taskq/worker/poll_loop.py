"""A lane: a thread that polls, handles and completes, one batch after another, as an owner of its own."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from airflow_provider_taskq.queue import Decision, Result, Task, TaskQueue
from airflow_provider_taskq.worker.commit import has_company
from airflow_provider_taskq.worker.connection import is_refused
from airflow_provider_taskq.worker.finishing import decide
from airflow_provider_taskq.worker.lease import Run
from airflow_provider_taskq.worker.rounds import Rounds

if TYPE_CHECKING:
    from airflow_provider_taskq.worker.runtime import WorkerRuntime


class Lane(Rounds):
    """Goes round until its shift stops. What was done is exchanged for what is next in one call, where that can be."""

    def __init__(self, shift: "WorkerRuntime", inherited: Run | None = None) -> None:
        super().__init__(shift)
        self._inherited = inherited  # a batch that its predecessor is stuck in, to be FAILED
        self._decided: tuple[Run, Mapping[Task, Decision]] | None = None

    def hand_over(self, run: Run, to_fail: bool) -> None:
        """Lets another lane take this one's place."""
        self._replaced = True
        # first, so that a stop waits for one of both
        self._shift.employ(Lane(self._shift, run if to_fail else None))
        self._shift.left(self)

    def _begin(self) -> None:
        """Ends what its predecessor is stuck in, and then the lease that this is held under."""
        if self._inherited is None:
            return
        self._finisher.fail(self._inherited, self._inherited.reason or RuntimeError("given up"))
        self._shift.dismiss(self._session, self._inherited.tenure)

    def _end(self) -> None:
        """Commits what is left."""
        if self._decided is not None:
            (run, decisions), self._decided = self._decided, None
            self._finisher.complete(run, decisions)

    def _room(self) -> int:
        return self._shift.settings.size

    def _own(self) -> int:
        return len(self._decided[0].batch.tasks) if self._decided is not None else 0

    def _next(self, size: int) -> Sequence[Task]:
        """The next tasks: polled along with the completion of the last batch, where it waits for that."""
        if self._decided is None:
            return self._poller.poll(size)
        (run, decisions), self._decided = self._decided, None
        lost = False
        if not self._poller.in_doubt:
            try:
                tasks = self._poller.asked(lambda queue: self._exchange(queue, run, decisions))
            except Exception as error:  # noqa: BLE001 -- the batch comes first; a poll alone tells what is wrong with it
                lost = not is_refused(error)
            else:
                self._finisher.completed(run, decisions)
                return tasks
        self._finisher.complete(run, decisions, in_doubt=lost)
        return self._poller.poll(size)

    def _take(self, run: Run) -> None:
        """Has a batch handled; what it decides is committed by the next exchange, or at once."""
        if len(run.batch.tasks) >= self._shift.settings.size:
            self._shift.pause.wake()
        run.hand = self
        outcome = decide(self._shift, run)
        if not run.claim():
            return  # given up meanwhile, by whoever then told of it
        if isinstance(outcome, BaseException):
            self._finisher.fail(run, outcome)
            return
        self._shift.telling.on_callback(run.trace, outcome)
        if self._shift.may_exchange and not has_company(run.batch):
            self._decided = (run, outcome)
        else:
            self._finisher.complete(run, outcome)

    def _exchange(self, queue: TaskQueue, run: Run, decisions: Mapping[Task, Decision]) -> list[Task]:
        """One round trip for both."""
        to = self._shift.settings
        made = cast("Mapping[Task | int, Decision | Result]", decisions)
        return queue.exchange(run.tenure.owner, made, to.topic, to.size, to.order, to.condition)
