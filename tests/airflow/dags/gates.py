"""DAGs for the tests with real Airflow processes. TASKQ_TEST_MARK is a payload that must not appear anywhere."""

import os
from collections.abc import Iterator
from typing import Any

from airflow.sdk import DAG, Context, task

from airflow_provider_taskq.operators import TaskQCompleteOperator, TaskQPushOperator
from airflow_provider_taskq.queue import NewTask
from airflow_provider_taskq.sensors import TaskQSensor, TaskQStateSensor


def marked(params: dict[str, Any]) -> Iterator[NewTask]:
    mark = os.environ["TASKQ_TEST_MARK"]
    return (NewTask(f"function-{number}", payload={"mark": mark}) for number in range(params["count"]))


class FailsAfterItsFirstClaim(TaskQSensor):
    """A gate whose first try claims tasks and fails before it returns its claim."""

    def execute(self, context: Context) -> Any:
        with self.hook.transaction() as queue:
            held = [task.owner for task in queue.page(self.topic)]
        self.log.info("Before try %d the tasks are held by %s", context["ti"].try_number, held)
        return self.broken(context, super().execute(context))

    def broken(self, context: Context, result: Any) -> Any:
        if context["ti"].try_number == 1:
            raise RuntimeError(f"after {result['claimed']} tasks were claimed")
        return result


with DAG("push", schedule=None, params={"topic": "work", "count": 3}):
    TaskQPushOperator(task_id="function", topic="{{ params.topic }}", tasks=marked, create_topic=True)

with DAG("push_all_ways", schedule=None):

    @task
    def identifiers() -> list[list[str]]:
        return [["xcom-0", "xcom-1"], ["xcom-2"]]

    TaskQPushOperator(
        task_id="list",
        topic="ways",
        tasks=[
            {"identifier": "dict-{{ run_id }}", "payload": os.environ.get("TASKQ_TEST_MARK")},
            NewTask("object", payload=os.environ.get("TASKQ_TEST_MARK")),
        ],
        create_topic=True,
    ) >> TaskQPushOperator.partial(task_id="mapped", topic="ways").expand(tasks=identifiers())

with DAG("gate_only", schedule=None, params={"topic": "work"}):
    TaskQSensor(task_id="gate", topic="{{ params.topic }}", deferrable=True, timeout=300) >> TaskQSensor(
        task_id="again", topic="{{ ti.xcom_pull('gate')['topic'] }}", deferrable=True, timeout=300
    )

with DAG("claim", schedule=None, params={"topic": "work"}, default_args={"owner": "data-team"}):
    gate = FailsAfterItsFirstClaim(
        task_id="gate", topic="{{ params.topic }}", claim=2, deferrable=True, timeout=300, retries=1, retry_delay=1
    )
    TaskQCompleteOperator(task_id="complete", claim=gate.output, message="done")

for many, claim in (("many", None), ("many_claims", 1)):
    with DAG(many, schedule=None):
        TaskQSensor.partial(task_id="gate", claim=claim, deferrable=True, timeout=300).expand(
            topic=[f"{many}-{n}" for n in range(8)]
        )

with DAG("started", schedule=None, params={"topic": "work", "size": 2, "identifiers": ["a", "b"]}):
    started: dict[str, Any] = {"deferrable": True, "start_from_trigger": True, "timeout": 300}
    claiming = TaskQSensor(task_id="gate", topic="{{ params.topic }}", claim="{{ params.size }}", **started)
    complete = TaskQCompleteOperator(task_id="complete", claim=claiming.output)
    complete >> TaskQStateSensor(
        task_id="state", topic="{{ params.topic }}", identifiers="{{ params.identifiers }}", **started
    )
    TaskQSensor(task_id="unknown", topic="nowhere", **started)

with DAG("timeouts", schedule=None):
    TaskQSensor(task_id="skipped", topic="never", deferrable=True, timeout=5, soft_fail=True)
    TaskQSensor(task_id="unknown", topic="nowhere", deferrable=True, timeout=300)
    TaskQSensor(task_id="dropped", topic="dropped", deferrable=True, timeout=300)
    TaskQSensor(task_id="rescheduled", topic="many-0", mode="reschedule", poke_interval=2, timeout=300)
