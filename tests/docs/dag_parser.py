"""Program that parses a folder of DAG files as Airflow does, and prints as JSON what it found and what failed."""

import json
import sys

try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:  # Airflow 3.1
    from airflow.models.dagbag import DagBag  # type: ignore[no-redef]

if __name__ == "__main__":
    bag = DagBag(sys.argv[1])
    files = sorted({dag.fileloc for dag in bag.dags.values()})
    sys.stdout.write("\n" + json.dumps({"files": files, "errors": bag.import_errors}) + "\n")
