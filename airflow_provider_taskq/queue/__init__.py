"""The queue: typed verbs over the schema `taskq` in PostgreSQL. Needs psycopg, and nothing else.

    with psycopg.connect(dsn) as conn:
        queue = TaskQueue(conn)
        queue.push("orders", [NewTask("order-17", {"total": 12})])

Every verb runs in the caller's transaction and never commits.
"""

from airflow_provider_taskq.queue.connection import connect
from airflow_provider_taskq.queue.errors import (
    InvalidState,
    InvalidTask,
    LeaseLost,
    NotHeld,
    SchemaMismatch,
    TaskQueueError,
    UnknownTopic,
)
from airflow_provider_taskq.queue.model import (
    Condition,
    Count,
    Decision,
    Insertion,
    Json,
    NewTask,
    Order,
    Owner,
    Pushed,
    Result,
    State,
    Task,
    TaskInfo,
)
from airflow_provider_taskq.queue.policy import RetryPolicy, TopicPolicy
from airflow_provider_taskq.queue.schema import install, uninstall, verify
from airflow_provider_taskq.queue.task_queue import TaskQueue

__all__ = [
    "Condition",
    "Count",
    "Decision",
    "Insertion",
    "InvalidState",
    "InvalidTask",
    "Json",
    "LeaseLost",
    "NewTask",
    "NotHeld",
    "Order",
    "Owner",
    "Pushed",
    "Result",
    "RetryPolicy",
    "SchemaMismatch",
    "State",
    "Task",
    "TaskInfo",
    "TaskQueue",
    "TaskQueueError",
    "TopicPolicy",
    "UnknownTopic",
    "connect",
    "install",
    "uninstall",
    "verify",
]
