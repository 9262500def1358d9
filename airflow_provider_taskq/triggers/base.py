"""What the triggers of gates share: they wait, and then end the task, or resume it when Airflow can bear it."""

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
from airflow_provider_taskq.queue import InvalidArgument, TaskQueueError
from airflow_provider_taskq.queue.owner_names import TaskInstanceName
from airflow_provider_taskq.triggers.wait_log import WaitLog
from airflow_provider_taskq.triggers.waits import Wait
from airflow_provider_taskq.triggers.watcher import watcher

log = logging.getLogger(__name__)

# Not the loop's own threads: Airflow logs the event of a trigger in these, which would wait behind all other gates.
_STORING = ThreadPoolExecutor(2, thread_name_prefix="taskq results")


class GateTrigger(BaseTrigger):
    """Fires once: a success, or an event with a `status`.

    :param taskq_conn_id: the Airflow connection.
    :param poke_interval: seconds between two looks.
    :param ends_task: whether to end the deferred task with success rather than resume it in a worker.
    :param stores: which XComs of a task that ends here are stored: `nothing`, `result`, or `each` of its values too.
    :param resume_after: seconds that pass, at least, before the task is resumed.
    :param since: when the gate began to look, for the metric of a gate that ends here; None if it begins here.
    """

    topic: str

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
        self.wait_log: WaitLog | None = None  # made in `run`, whose context is the one of this trigger

    @property
    @abstractmethod
    def subject(self) -> dict[str, Any]:
        """The arguments that say what is waited for: names only."""

    @property
    @abstractmethod
    def wait(self) -> Wait[Any]:
        """The same for the watcher."""

    @abstractmethod
    def facts(self, outcome: Any) -> dict[str, Any]:
        """What an event tells of the outcome: a `status`; if it is ready, the rest is what the gate returns."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            **self.subject,
            "taskq_conn_id": self.taskq_conn_id,
            "poke_interval": self.poke_interval,
            "ends_task": self.ends_task,
            "stores": self.stores,
            "resume_after": self.resume_after,
            **({} if self.since is None else {"since": self.since}),
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Waits, then fires once: the gate is open, or why it will not be."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        since = datetime.fromisoformat(self.since) if self.since else datetime.now(UTC)
        self.wait_log = WaitLog(log)
        try:
            facts = await self._open()
        except (AirflowException, TaskQueueError, ValueError) as error:
            facts = {"status": "error", "message": str(error)}
            log.error("The gate waits no more: %s", error)  # noqa: TRY400  expected, and the message says what to do
        else:
            log.info("The trigger has ended its wait: %s", facts)
        if self.ends_task and facts["status"] == "ready" and await self._stored(facts):
            metrics.gate_opened(self.topic, since, in_triggerer=True)
            yield TaskSuccessEvent()
            return
        await asyncio.sleep(began + self.resume_after - loop.time())
        yield TriggerEvent(facts)  # type: ignore[no-untyped-call]

    def logical_task(self) -> str:
        """The name `dag_id/run_id/task_id/map_index` of the deferred task, as in a worker."""
        ti: Any = self.task_instance
        if ti is None:
            raise InvalidArgument("this trigger has no task instance whose name it could use")
        index = -1 if ti.map_index is None else ti.map_index
        return str(TaskInstanceName(ti.dag_id, ti.run_id, ti.task_id, index))

    async def _open(self) -> dict[str, Any]:
        """Waits until the gate is open, or will not be; returns the facts of that."""
        return self.facts(await watcher(self.taskq_conn_id).until(self.wait, self.wait_log))

    async def _stored(self, facts: dict[str, Any]) -> bool:
        """Stores what the gate returns, as a worker would. If that fails, a worker has to end the task.

        Not by TaskSuccessEvent: Airflow 3.3 stores what that carries as text of JSON, which a later task reads as text.
        """
        if self.stores == "nothing" or self.task_instance is None:
            return True
        result = {name: value for name, value in facts.items() if name != "status"}
        values = {**(result if self.stores == "each" else {}), "return_value": result}
        try:
            await asyncio.get_running_loop().run_in_executor(_STORING, _set_xcoms, self.task_instance, values)
        except Exception:
            self.log.exception("Cannot store the result of the gate; a worker will look again and store it.")
            return False
        return True


def _set_xcoms(ti: Any, values: dict[str, Any]) -> None:
    """Stores XComs of a task instance, through the process that supervises this one."""
    from airflow.sdk.execution_time.xcom import XCom

    for key, value in values.items():
        XCom.set(key=key, value=value, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=ti.map_index)
