"""The tutorial runs as it is written, with an Airflow and a PostgreSQL of its own."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from demo.postgres import EmbeddedPostgres
from demo.processes import free_port
from tests.docs.blocks import read_blocks
from tests.docs.pages import Page
from tests.docs.test_pages import ROOT
from tests.spark.session import SHORT_LIVED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.documents,
    pytest.mark.timeout(3600),
    pytest.mark.promise("The examples, and the code of each page of this site, run as they are written"),
]

TUTORIAL = ROOT / "docs" / "tutorial.md"

# Both log servers would listen on every address of the machine.
AIRFLOW = """#!/bin/sh
case "$1" in scheduler | triggerer) set -- "$@" --skip-serve-logs ;; esac
exec "{program}" "$@"
"""

# Instead of a reader's patience: waits until a query of Airflow's own database has a row.
WAIT_FOR = """#!{python}
import sqlite3, sys, time
deadline = time.monotonic() + 850
while sqlite3.connect("airflow/airflow.db", timeout=60).execute(sys.argv[1]).fetchone() is None:
    if time.monotonic() > deadline:
        sys.exit("no row: " + sys.argv[1])
    time.sleep(0.5)
"""


@pytest.fixture
def database() -> Iterator[str]:
    """The reader's PostgreSQL, with an empty database, and a role that owns it and nothing else."""
    with EmbeddedPostgres() as server:
        with psycopg.connect(server.dsn, autocommit=True) as admin:
            admin.execute("CREATE ROLE reader LOGIN PASSWORD 'a/b:c@d'")
            admin.execute("CREATE DATABASE tutorial OWNER reader")
        yield make_conninfo(server.dsn, user="reader", password="a/b:c@d", dbname="tutorial")


@pytest.fixture
def environment() -> Mapping[str, str]:
    """The environment of a reader: no variable of TaskQ, Spark or Airflow, but ports and addresses for this machine."""
    hidden = ("TASKQ_", "PG", "SPARK_", "PYSPARK_", "AIRFLOW")
    port = free_port()
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(hidden)},
        **SHORT_LIVED,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }


def test_the_tutorial_runs_as_it_is_written(database: str, environment: Mapping[str, str], tmp_path: Path) -> None:
    """Only the address of the database and the port of Airflow differ from the page."""
    folder = tmp_path / "page"
    folder.mkdir()
    with Page(folder, database, environment) as page:
        for name, text in {"airflow": AIRFLOW, "wait-for": WAIT_FOR}.items():
            program = folder / "bin" / name
            program.write_text(text.format(program=shutil.which("airflow"), python=sys.executable))
            program.chmod(0o755)
        page.run(read_blocks(TUTORIAL, ROOT))
