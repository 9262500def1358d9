"""adbc-driver-postgresql compared with our binary COPY, in both directions, in its own virtual environment."""

import json
import subprocess
import sys
from pathlib import Path

from airflow_provider_taskq.queue import connect
from bench.peers.installing import NotInstalledError, environment
from bench.rig import Rig
from bench.spark.section import Scale
from bench.spark.sites import OWNER, filled

REQUIRES = ("adbc-driver-postgresql==1.13.0", "pyarrow", "numpy", "psycopg[binary]")
PROGRAM = "bench.spark.adbc_program"
ROOT = Path(__file__).parents[2]


def run(rig: Rig, scale: Scale) -> None:
    """Measures both in one process of that environment."""
    print(f"\nSpark's transport: {scale.flights:,} rows by adbc and by our COPY, without Spark", flush=True)
    try:
        python = environment(scale.cache / "adbc", sys.executable, REQUIRES)
    except NotInstalledError as error:
        print(f"  {error}")
        return
    with filled(rig, scale.flights, claimed=True) as site, site.copy() as dsn:
        with connect(dsn) as conn:
            fence = conn.execute("SELECT fence FROM taskq_internal.owner WHERE name = %s", (OWNER,)).fetchall()[0][0]
        request = {"dsn": dsn, "owner": OWNER, "fence": fence, "rounds": scale.rounds}
        subprocess.run([str(python), "-m", PROGRAM], input=json.dumps(request), text=True, check=True, cwd=ROOT)
