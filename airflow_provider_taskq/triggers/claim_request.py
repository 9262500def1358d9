"""The claim of a gate: in a worker or in the triggerer, by the same rules."""

import logging
from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_taskq.queue import Condition, Order, TaskQueue
from airflow_provider_taskq.queue.claims import Claim, held_sequences
from airflow_provider_taskq.triggers.snapshot import outcome_now
from airflow_provider_taskq.triggers.waits import ReadyWait


@dataclass(frozen=True, slots=True)
class TakenOver:
    """Tasks that the owner held when the gate registered it: of the gate's topic, and of all topics."""

    fence: int
    of_topic: int
    of_all: int

    def message(self, request: "ClaimRequest", *, of_others: bool) -> tuple[int, str]:
        """The level and the text for the gate's log. `of_others`: another gate may have claimed them."""
        if not of_others:
            return logging.INFO, f"Took over {self.of_all} tasks that an earlier run of this task instance claimed."
        return logging.WARNING, (
            f"Took over {self.of_all} tasks ({self.of_topic} of topic {request.topic}) that owner {request.owner!r} "
            f"held under fence {self.fence}. If another gate uses the same claim_as, its claim is lost: give each gate "
            "a claim_as of its own."
        )


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a gate claims: up to `size` tasks of a topic, once `min_tasks` are ready, under an owner.

    `max_wait`: seconds; once the oldest due task has waited so long, any ready task is enough. `lease`: how long the
    claim lasts without a heartbeat.
    """

    topic: str
    owner: str
    size: int
    min_tasks: int = 1
    order: Order = Order.FIRST_IN_FIRST_OUT
    condition: Condition = Condition.NONE
    max_wait: float | None = None
    lease: timedelta = timedelta(hours=1)

    def take(self, queue: TaskQueue) -> tuple[Claim, TakenOver | None] | None:
        """Claims tasks, or takes over those of the topic that the owner holds already, and then claims no more.

        None if the gate stays closed: roll the transaction back then, so that it leaves no lease behind. That includes
        a claim of fewer tasks than would open the gate, because other consumers were quicker.
        """
        previous = queue.owner(self.owner)
        taken_over = None
        if previous is not None:
            owner = queue.register(self.owner, self.lease)
            if owner.resumed:
                held = len(held_sequences(queue.conn, owner, self.topic))
                taken_over = TakenOver(previous.fence, held, len(held_sequences(queue.conn, owner)))
                if held:
                    return Claim(self.topic, owner.name, owner.fence, held), taken_over
        ready = self._ready(queue)
        if ready is None:
            return None
        owner = queue.register(self.owner, self.lease)
        claimed = queue.claim(self.topic, owner, self.size, self.order, self.condition)
        enough = min(self.min_tasks, self.size) if ready >= self.min_tasks else 1
        return (Claim(self.topic, owner.name, owner.fence, claimed), taken_over) if claimed >= enough else None

    def _ready(self, queue: TaskQueue) -> int | None:
        """How many tasks are ready, if that opens the gate."""
        return outcome_now(queue.conn, ReadyWait(self.topic, self.min_tasks, self.condition.value, self.max_wait))
