"""Payloads that PostgreSQL stores and Python cannot decode, put into the database behind the queue's checks."""

import psycopg

from airflow_provider_taskq.queue import Task
from tests.internals import damage_task

POISON = {
    "an integer of 5,000 digits": "7" * 5000,
    "brackets 2,000 deep": "[" * 2000 + "]" * 2000,
    "a number beyond a double": "1e999",
}


def poison(conn: psycopg.Connection, task: Task, text: str) -> None:
    """Replaces the payload of a stored task, as the owner of the tables can."""
    damage_task(conn, task.sequence, payload=text)
