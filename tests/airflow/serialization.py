"""Serialization of DAGs, by the class that the Airflow release has for it."""

import json
from typing import Any

from airflow.serialization import serialized_objects

# Airflow 3.1 has it in SerializedDAG itself.
_STORE: Any = vars(serialized_objects).get("DagSerialization") or vars(serialized_objects)["SerializedDAG"]


def stored(dag: Any) -> dict[str, Any]:
    """Return a DAG as Airflow stores it in the metadata database."""
    written: dict[str, Any] = _STORE.to_dict(dag)
    return written


def restored(dag: Any) -> Any:
    """Return a DAG as the scheduler reads it."""
    return _STORE.from_dict(json.loads(json.dumps(stored(dag))))
