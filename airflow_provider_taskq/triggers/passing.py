"""Which errors pass, as a server that restarts or a standby that takes over, and which would come again and again."""

import psycopg
from airflow.providers.common.compat.sdk import AirflowNotFoundException

from airflow_provider_taskq.queue.errors import to_queue_error

_OF_ALL = ("42", "3F")  # no privilege, no function, no schema
_OF_SOME = ("22", "23", "TQ")  # what one question says


def final(error: Exception) -> Exception | None:
    """The error to end waits with, or None for one that passes."""
    if isinstance(error, AirflowNotFoundException):
        return error
    if not isinstance(error, psycopg.Error):
        return None
    code = error.sqlstate or ""
    refused = code.startswith((*_OF_ALL, *_OF_SOME)) or (not code and isinstance(error, psycopg.DataError))
    moving = (error.diag.constraint_name or "").startswith("topic_moves_")
    return (to_queue_error(error) or error) if refused and not moving else None


def concerns_all(error: psycopg.Error) -> bool:
    """Whether any other question would be refused as well."""
    return (error.sqlstate or "").startswith(_OF_ALL)
