"""How Airflow stores a DAG, under the name that its release has for it."""

import json
from typing import Any

from airflow.serialization import serialized_objects

# 3.1 has it in SerializedDAG itself.
_STORE: Any = vars(serialized_objects).get("DagSerialization") or vars(serialized_objects)["SerializedDAG"]


def stored(dag: Any) -> dict[str, Any]:
    """What is written to the metadata database."""
    written: dict[str, Any] = _STORE.to_dict(dag)
    return written


def restored(dag: Any) -> Any:
    """What the scheduler reads of it."""
    return _STORE.from_dict(json.loads(json.dumps(stored(dag))))
