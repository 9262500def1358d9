"""The queue's owner in an operator whose parameter `owner` is not Airflow's."""

from collections.abc import Mapping
from typing import Any

from airflow.providers.common.compat.sdk import conf

from airflow_provider_taskq.operators.claims import logical_task

__all__ = ["AIRFLOWS_OWNER", "given_owner", "logical_task"]

# Who Airflow says maintains a DAG that does not say so itself.
AIRFLOWS_OWNER: str = conf.get("operators", "default_owner", fallback="airflow")


def given_owner(owner: str | None, default_args: Mapping[str, Any] | None) -> str | None:
    """The queue's owner that a DAG's author gave, or None.

    Every Airflow operator has a field of that name too: who maintains the DAG. Airflow fills it in, from
    `default_args` and, on a mapped operator, from its configuration. Taken for the queue's owner, that one name would
    let all gates of an installation lock each other out, so what Airflow fills in does not count.
    """
    if not owner or owner == (default_args or {}).get("owner"):
        return None
    return None if owner == AIRFLOWS_OWNER else owner
