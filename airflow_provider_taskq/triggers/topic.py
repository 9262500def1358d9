"""Waits in the triggerer until a topic has tasks, and claims them for a gate that claims."""

import asyncio
from typing import Any

from airflow_provider_taskq import metrics
from airflow_provider_taskq.parameters import parse_count, parse_duration, parse_optional_duration
from airflow_provider_taskq.queue import Condition, Order
from airflow_provider_taskq.triggers.base import TaskQBaseTrigger
from airflow_provider_taskq.triggers.claims import ClaimRequest, get_claim_executor
from airflow_provider_taskq.triggers.waits import ReadyWait
from airflow_provider_taskq.triggers.watcher import get_watcher


class TaskQTrigger(TaskQBaseTrigger):
    """Fires once, when a topic has enough tasks to poll.

    With `claim` and `ends_task` the trigger also claims. A trigger that only resumes the task leaves the claim to the
    worker. Another triggerer that takes over finds the claim again, because the owner is the logical task.

    All triggers of a process on one Airflow connection share one database connection and one query per check. With
    `listen: true` in the extra, notifications wake them over a second connection. Claims use another connection, which
    is open while gates claim. A lost connection is replaced. An unknown topic or a missing schema ends the wait.

    The event is `{"status": "ready", "topic", "ready"}` or the claim, or a `message` with the status `error`.

    Numbers and durations may be rendered text.

    :param topic: the topic's name.
    :param min_tasks: the number of ready tasks that opens the gate.
    :param condition: the condition under which tasks are counted and claimed.
    :param max_wait: seconds; once the topic's oldest due task has waited this long, one ready task is enough.
    :param claim: the most tasks to claim; None to claim none.
    :param claim_as: the owner's name; None for the logical task.
    :param order: the order in which tasks are claimed.
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
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.min_tasks = min_tasks
        self.condition = condition
        self.max_wait = max_wait
        self.claim = claim
        self.claim_as = claim_as
        self.order = order
        self.lease = lease

    @property
    def wait_arguments(self) -> dict[str, Any]:
        """The arguments of the wait, and those of the claim if there is one."""
        arguments = {
            "topic": self.topic,
            "min_tasks": self.min_tasks,
            "condition": self.condition,
            "max_wait": self.max_wait,
        }
        if self.claim is None:
            return arguments
        return {**arguments, "claim": self.claim, "claim_as": self.claim_as, "order": self.order, "lease": self.lease}

    @property
    def wait(self) -> ReadyWait:
        """The wait for ready tasks."""
        return ReadyWait(self.topic, self._min_tasks, self.condition, self._max_wait_seconds, self.poke_interval)

    def event_payload(self, outcome: int) -> dict[str, Any]:
        """Return how many tasks are ready, counted to `min_tasks`: the shared query may count further."""
        return {"status": "ready", "topic": self.topic, "ready": min(outcome, self._min_tasks)}

    async def _wait_until_open(self) -> dict[str, Any]:
        size = parse_count("claim", self.claim)
        if size is None or not self.ends_task:
            return await super()._wait_until_open()
        request = self.claim_request(size, self.claim_as or self.logical_task_name())
        while (claim := await self._try_claim(request)) is None:
            await get_watcher(self.taskq_conn_id).wait_for(self.wait, self.wait_log)
            if (claim := await self._try_claim(request)) is not None:
                break
            await asyncio.sleep(self.poke_interval)  # another consumer took the tasks first
        return {"status": "ready", **claim}

    async def _try_claim(self, request: ClaimRequest) -> dict[str, Any] | None:
        claimed = await get_claim_executor(self.taskq_conn_id).claim(request)
        if claimed is None:
            return None
        claim, takeover = claimed
        if takeover is None:
            metrics.count(metrics.POLLED, claim.claimed, topic=claim.topic, in_triggerer=True)
        else:
            level, message = takeover.message(request, may_be_another_gate=bool(self.claim_as))
            self.log.log(level, message)
        return claim.as_dict()

    def claim_request(self, size: int, owner: str) -> ClaimRequest:
        """Return the claim of the gate, for `size` tasks under an owner's name."""
        return ClaimRequest(
            topic=self.topic,
            owner=owner,
            size=size,
            min_tasks=self._min_tasks,
            order=Order(self.order),
            condition=Condition(self.condition),
            max_wait=self._max_wait_seconds,
            lease=parse_duration(self.lease),
        )

    @property
    def _min_tasks(self) -> int:
        return parse_count("min_tasks", self.min_tasks) or 1

    @property
    def _max_wait_seconds(self) -> float | None:
        max_wait = parse_optional_duration(self.max_wait)
        return None if max_wait is None else max_wait.total_seconds()
