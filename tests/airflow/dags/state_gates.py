"""Gates on states and junctures: in both modes for `dag.test()`, deferred for the tests with real processes."""

from airflow.sdk import DAG, Context

from airflow_provider_taskq.hooks import TaskQHook
from airflow_provider_taskq.sensors import TaskQJunctureSensor, TaskQStateSensor


def announce(context: Context) -> None:
    """Tell the test that a gate starts its first check."""
    with TaskQHook().transaction() as queue:
        queue.push(f"checks-{context['ti'].dag_id}", [context["ti"].task_id])


for mode in ("deferrable", "reschedule"):
    chosen = {"deferrable": True} if mode == "deferrable" else {"mode": mode, "poke_interval": 1}
    with DAG(f"gates_{mode}", schedule=None):
        (
            TaskQStateSensor(
                task_id="state", topic=mode, identifiers=["a", "b"], timeout=120, pre_execute=announce, **chosen
            )
            >> TaskQJunctureSensor(task_id="juncture", topic=mode, groups=[["c", "d"], ["e"]], timeout=120, **chosen)
            >> TaskQStateSensor(
                task_id="after", topic="{{ ti.xcom_pull('juncture')['topic'] }}", identifiers="a", timeout=120, **chosen
            )
        )

with DAG("state_gate", schedule=None, params={"topic": "states"}):
    TaskQStateSensor(
        task_id="gate",
        topic="{{ params.topic }}",
        identifiers=["a", "b"],
        deferrable=True,
        timeout=300,
        retries=2,
        retry_delay=1,
    ) >> TaskQStateSensor(
        task_id="again", topic="{{ ti.xcom_pull('gate')['topic'] }}", identifiers=["a"], deferrable=True, timeout=300
    )

with DAG("juncture_gate", schedule=None, params={"topic": "joined"}):
    TaskQJunctureSensor(
        task_id="gate", topic="{{ params.topic }}", groups=[["a", "b"], ["c"]], deferrable=True, timeout=300
    )
