"""Program that runs DAGs by `dag.test()` in an Airflow of its own, and prints the stored XComs and events as JSON.

Its arguments are the ids of the DAGs. AIRFLOW_HOME and the DAG folder come from the environment.
"""

import json
import os
import sys
from typing import Any

from airflow.models.asset import AssetEvent, AssetModel
from airflow.models.xcom import XComModel
from airflow.utils.db import initdb
from airflow.utils.session import create_session

try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:  # Airflow 3.1
    from airflow.models.dagbag import DagBag  # type: ignore[no-redef]

__all__ = ["DagBag", "run", "stored"]


def run(dag_ids: list[str]) -> dict[str, Any]:
    """Run DAGs one after the other; return the stored XComs and events."""
    initdb()
    bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    states = {}
    for dag_id in dag_ids:
        dag_run = bag.dags[dag_id].test()
        states[dag_id] = str(dag_run.state)
    return {"import_errors": bag.import_errors, "states": states, **stored()}


def stored() -> dict[str, Any]:
    """Return the XComs by task, map index and key, and the asset events by URI."""
    with create_session() as session:
        xcoms = {f"{x.dag_id}.{x.task_id}[{x.map_index}].{x.key}": x.value for x in session.query(XComModel)}
        found = session.query(AssetModel.uri, AssetEvent.extra).filter(AssetEvent.asset_id == AssetModel.id)
        events = [[uri, extra] for uri, extra in found]
    return {"xcoms": xcoms, "events": events}


if __name__ == "__main__":
    result = run(sys.argv[1:])
    sys.stdout.write("\n" + json.dumps(result) + "\n")
