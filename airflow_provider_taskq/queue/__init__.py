"""The queue: typed verbs over the SQL functions of the schema `taskq`. Needs psycopg and nothing else.

    with psycopg.connect(dsn) as conn:
        queue = TaskQueue(conn)
        queue.push("orders", [NewTask("order-17", {"total": 12})])

Every verb runs in the caller's transaction and never commits.
"""

from airflow_provider_taskq.queue.client import TaskQueue
from airflow_provider_taskq.queue.connection import connect
from airflow_provider_taskq.queue.drains import (
    DrainCounts,
    DrainReport,
    FailedTask,
    FailureLimit,
    MaxFailed,
    TooManyFailures,
    TooManyUndecided,
)
from airflow_provider_taskq.queue.errors import (
    Deadlock,
    InvalidArgument,
    InvalidState,
    InvalidTask,
    LeaseLost,
    NotHeld,
    SchemaMismatch,
    TaskQueueError,
    UnknownTopic,
)
from airflow_provider_taskq.queue.log import (
    Cursor,
    Events,
    PartitionBatch,
    PartitionLease,
    PartitionState,
    SkippedEvent,
    partition_of,
    sequence_id,
)
from airflow_provider_taskq.queue.models import (
    Condition,
    Count,
    Decision,
    Insertion,
    Json,
    Junction,
    MaintenanceResult,
    NewTask,
    Offered,
    Order,
    Outcome,
    Owner,
    Polled,
    Pushed,
    Result,
    Revival,
    State,
    Task,
    TaskInfo,
    UnreadablePayload,
)
from airflow_provider_taskq.queue.policies import RetryPolicy, TopicPolicy
from airflow_provider_taskq.queue.recurring import RecurringTask
from airflow_provider_taskq.queue.reports import HealthFinding, Row, Severity, TaskFilter
from airflow_provider_taskq.queue.schedules import Schedule, config_hash, ticks_cron, ticks_daily, ticks_every
from airflow_provider_taskq.queue.schema import install, uninstall, verify, verify_for_work
from airflow_provider_taskq.queue.task_input import TaskInput
from airflow_provider_taskq.queue.topic_status import TopicStatus

__all__ = [
    "Condition",
    "Count",
    "Cursor",
    "Deadlock",
    "Decision",
    "DrainCounts",
    "DrainReport",
    "Events",
    "FailedTask",
    "FailureLimit",
    "HealthFinding",
    "Insertion",
    "InvalidArgument",
    "InvalidState",
    "InvalidTask",
    "Json",
    "Junction",
    "LeaseLost",
    "MaintenanceResult",
    "MaxFailed",
    "NewTask",
    "NotHeld",
    "Offered",
    "Order",
    "Outcome",
    "Owner",
    "PartitionBatch",
    "PartitionLease",
    "PartitionState",
    "Polled",
    "Pushed",
    "RecurringTask",
    "Result",
    "RetryPolicy",
    "Revival",
    "Row",
    "Schedule",
    "SchemaMismatch",
    "Severity",
    "SkippedEvent",
    "State",
    "Task",
    "TaskFilter",
    "TaskInfo",
    "TaskInput",
    "TaskQueue",
    "TaskQueueError",
    "TooManyFailures",
    "TooManyUndecided",
    "TopicPolicy",
    "TopicStatus",
    "UnknownTopic",
    "UnreadablePayload",
    "config_hash",
    "connect",
    "install",
    "partition_of",
    "sequence_id",
    "ticks_cron",
    "ticks_daily",
    "ticks_every",
    "uninstall",
    "verify",
    "verify_for_work",
]
