"""The file that spark-submit runs, whose path is `airflow_provider_taskq.spark.application_path()`."""

import sys
from pathlib import Path

# A script's own folder comes first on the path; here that would make this package's modules importable a second time.
_folder = str(Path(__file__).resolve().parent)
sys.path[:] = [entry for entry in sys.path if entry != _folder]

if __name__ == "__main__":
    from airflow_provider_taskq.spark import run

    sys.exit(run())
