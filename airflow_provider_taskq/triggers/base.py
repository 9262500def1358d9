"""Base class of the triggers of gates, which wait and then end the task or resume it in a worker."""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException
from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

from airflow_provider_taskq import metrics
from airflow_provider_taskq.parameters import logical_task_name
from airflow_provider_taskq.queue import InvalidArgument, TaskQueueError
from airflow_provider_taskq.queue.waits import Wait
from airflow_provider_taskq.triggers.wait_log import WaitLog
from airflow_provider_taskq.triggers.watcher import get_watcher

log = logging.getLogger(__name__)

# Not the default executor of the loop: Airflow logs events of triggers there, which would wait behind all gates.
_XCOM_THREADS = ThreadPoolExecutor(2, thread_name_prefix="taskq results")


class TaskQBaseTrigger(BaseTrigger):
    """Waits for a gate, and fires once: TaskSuccessEvent to end the task, or an event with a `status` to resume it.

    :param taskq_conn_id: the Airflow connection.
    :param poke_interval: seconds between two checks.
    :param ends_task: whether the trigger ends the deferred task with success instead of resuming it in a worker.
    :param stores: the XComs of a task that ends here: `nothing`, `result` for the return value, or `each` for the
        return value and each of its values.
    :param resume_after: the shortest time until the trigger resumes the task, in seconds.
    :param since: when the gate began to wait, for the metric of a gate that ends here; None for the trigger's start.
    """

    topic: str
    wait_fields: tuple[str, ...]  # the names of the subclass's constructor arguments, which are also attributes

    def __init__(
        self,
        *,
        taskq_conn_id: str = "taskq_default",
        poke_interval: float = 1.0,
        ends_task: bool = False,
        stores: str = "each",
        resume_after: float = 0.0,
        since: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.taskq_conn_id = taskq_conn_id
        self.poke_interval = poke_interval
        self.ends_task = ends_task
        self.stores = stores
        self.resume_after = resume_after
        self.since = since
        self.wait_log: WaitLog | None = None  # created in `run`, because a WaitLog keeps the context of its creator

    @property
    @abstractmethod
    def wait(self) -> Wait[Any]:
        """The wait that the watcher checks."""

    @abstractmethod
    def event_payload(self, outcome: Any) -> dict[str, Any]:
        """Return the event for an outcome of the wait: a `status`, and with `ready` the values of the gate."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the constructor arguments."""
        fields = (*self.wait_fields, "taskq_conn_id", "poke_interval", "ends_task", "stores", "resume_after")
        arguments = {name: getattr(self, name) for name in fields}
        if self.since is not None:
            arguments["since"] = self.since
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait until the gate is open or can never open, and fire once."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        since = datetime.fromisoformat(self.since) if self.since else datetime.now(UTC)
        self.wait_log = WaitLog(log)
        try:
            payload = await self._wait_until_open()
        except (AirflowException, TaskQueueError, ValueError) as error:
            payload = {"status": "error", "message": str(error)}
            log.error("Wait failed: error=%s", error)  # noqa: TRY400  expected, and the message says what to do
        else:
            log.info("Wait ended: event=%s", payload)
        if self.ends_task and payload["status"] == "ready" and await self._store_result(payload):
            metrics.gate_opened(self.topic, since, metrics.record_in_triggerer)
            yield TaskSuccessEvent()
            return
        await asyncio.sleep(began + self.resume_after - loop.time())
        yield TriggerEvent(payload)  # type: ignore[no-untyped-call]

    def logical_task_name(self) -> str:
        """Return the name `dag_id/run_id/task_id/map_index` of the deferred task, as in a worker.

        Raises InvalidArgument if Airflow has given the trigger no task instance.
        """
        if self.task_instance is None:
            raise InvalidArgument("this trigger has no task instance, whose name it could use: set claim_as or name")
        return logical_task_name(self.task_instance)

    async def _wait_until_open(self) -> dict[str, Any]:
        return self.event_payload(await get_watcher(self.taskq_conn_id).wait_for(self.wait, self.wait_log))

    async def _store_result(self, payload: dict[str, Any]) -> bool:
        """Store the gate's result as XComs, as a worker would. Return False if that failed."""
        # TaskSuccessEvent could carry XComs, but Airflow 3.3 stores them as JSON text, and later tasks read that text.
        if self.stores == "nothing" or self.task_instance is None:
            return True
        result = {name: value for name, value in payload.items() if name != "status"}
        values = {**(result if self.stores == "each" else {}), "return_value": result}
        try:
            await asyncio.get_running_loop().run_in_executor(_XCOM_THREADS, _set_xcoms, self.task_instance, values)
        except Exception:
            self.log.exception("Cannot store the gate's result, resuming the task in a worker")
            return False
        return True


def _set_xcoms(ti: Any, values: dict[str, Any]) -> None:
    from airflow.sdk.execution_time.xcom import XCom

    for key, value in values.items():
        XCom.set(key=key, value=value, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=ti.map_index)
