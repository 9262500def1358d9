"""Gates in each mode, for the test of their logs."""

from airflow.sdk import DAG

from airflow_provider_taskq.sensors import TaskQSensor

with DAG("gate_logs", schedule=None, params={"topic": "logged"}):
    for mode in ("poke", "reschedule", "deferrable"):
        TaskQSensor(
            task_id=mode,
            topic="{{ params.topic }}",
            min_tasks=2,
            timeout=600,
            poke_interval=2,
            deferrable=mode == "deferrable",
            mode="reschedule" if mode == "reschedule" else "poke",
        )
