"""Waits in the triggerer until a topic has tasks, and claims them if the gate does."""

import asyncio
from typing import Any

from airflow_provider_taskq import metrics
from airflow_provider_taskq.parameters import count, optional_span, span
from airflow_provider_taskq.queue import Condition, Order
from airflow_provider_taskq.triggers.base import GateTrigger
from airflow_provider_taskq.triggers.claim_request import ClaimRequest
from airflow_provider_taskq.triggers.claims import claimer
from airflow_provider_taskq.triggers.waits import ReadyWait
from airflow_provider_taskq.triggers.watcher import watcher


class TaskQTrigger(GateTrigger):
    """Fires once, when a topic has enough tasks to be polled. Without `claim` it only looks.

    With `claim` it also claims, if it ends the task: a trigger that only resumes the task leaves that to the worker.
    A triggerer that takes over finds the claim again, as the owner is the logical task.

    All triggers of a process that use one Airflow connection share one database connection and one query a look; with
    `listen: true` in its extra, they are woken by the queue's notifications as well, on a second one. Claims are made
    on one more, which is open while gates claim. A lost connection is replaced; a topic that is not known, or a
    schema that is not there, ends the wait at once.

    Its event tells `{"status": "ready", "topic", "ready"}`, or a `message` with the status `error`.

    Numbers and durations may be texts, as templates render them.

    :param topic: the topic's name.
    :param min_tasks: how many tasks are enough.
    :param condition: under which condition the tasks are counted and claimed.
    :param max_wait: seconds; once the topic's oldest due task has waited so long, any ready task is enough.
    :param claim: how many tasks to claim at most; None to claim none.
    :param claim_as: the owner's name; None for the logical task.
    :param order: which tasks are claimed first.
    :param lease: how long the claim lasts without a heartbeat, in seconds.
    """

    def __init__(
        self,
        *,
        topic: str,
        min_tasks: int | str = 1,
        condition: str = "NONE",
        max_wait: float | str | None = None,
        claim: int | str | None = None,
        claim_as: str | None = None,
        order: str = "FIRST_IN_FIRST_OUT",
        lease: float | str = 3600.0,
        **how: Any,
    ) -> None:
        super().__init__(**how)
        self.topic = topic
        self.min_tasks = min_tasks
        self.condition = condition
        self.max_wait = max_wait
        self.claim = claim
        self.claim_as = claim_as
        self.order = order
        self.lease = lease

    @property
    def subject(self) -> dict[str, Any]:
        """The topic, when it is ready, and what to claim."""
        looked_for = {
            "topic": self.topic,
            "min_tasks": self.min_tasks,
            "condition": self.condition,
            "max_wait": self.max_wait,
        }
        claimed = {"claim": self.claim, "claim_as": self.claim_as, "order": self.order, "lease": self.lease}
        return looked_for if self.claim is None else {**looked_for, **claimed}

    @property
    def wait(self) -> ReadyWait:
        """The same for the watcher."""
        return ReadyWait(self.topic, self._least, self.condition, self._longest_wait, self.poke_interval)

    def facts(self, outcome: int) -> dict[str, Any]:
        """How many tasks are ready, counted to as many as open the gate: others may have asked for more."""
        return {"status": "ready", "topic": self.topic, "ready": min(outcome, self._least)}

    async def _open(self) -> dict[str, Any]:
        """Waits until the gate is open, and claims if this trigger ends a gate that does."""
        size = count("claim", self.claim)
        if size is None or not self.ends_task:
            return await super()._open()
        request = self._request(size)
        while (claim := await self._claimed(request)) is None:
            await watcher(self.taskq_conn_id).until(self.wait, self.wait_log)
            if (claim := await self._claimed(request)) is not None:
                break
            await asyncio.sleep(self.poke_interval)  # other consumers were quicker
        return {"status": "ready", **claim}

    async def _claimed(self, request: ClaimRequest) -> dict[str, Any] | None:
        """The claim, if the gate is open."""
        taken = await claimer(self.taskq_conn_id).take(request)
        if taken is None:
            return None
        claim, taken_over = taken
        if taken_over is None:
            metrics.count(metrics.POLLED, claim.claimed, topic=claim.topic, in_triggerer=True)
        else:
            level, message = taken_over.message(request, of_others=bool(self.claim_as))
            self.log.log(level, message)
        return claim.as_dict()

    def _request(self, size: int) -> ClaimRequest:
        """What the gate claims."""
        return ClaimRequest(
            topic=self.topic,
            owner=self.claim_as or self.logical_task(),
            size=size,
            min_tasks=self._least,
            order=Order(self.order),
            condition=Condition(self.condition),
            max_wait=self._longest_wait,
            lease=span(self.lease),
        )

    @property
    def _least(self) -> int:
        """How many tasks open the gate."""
        return count("min_tasks", self.min_tasks) or 1

    @property
    def _longest_wait(self) -> float | None:
        """The seconds after which the oldest task waits for no others."""
        longest = optional_span(self.max_wait)
        return None if longest is None else longest.total_seconds()
