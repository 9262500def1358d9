"""`python -m demo [--flights N] [--keep]`: starts all servers, runs the tour, and prints a report."""

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from airflow_provider_taskq.queue import TaskQueueError
from demo.airflow_site import AirflowError, AirflowSite
from demo.flights import TOPIC, data_folder
from demo.postgres import EmbeddedPostgres
from demo.report import next_commands
from demo.tour import DAGS, Tour, environment, prepare


def main() -> int:
    """Run the demo. Return 1 after an error, which is printed in one line."""
    parser = argparse.ArgumentParser(prog="python -m demo")
    parser.add_argument("--flights", type=_positive, help="number of flights to load (default: all 336,776)")
    parser.add_argument("--keep", action="store_true", help="keep all servers running until Ctrl-C")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with ExitStack() as stack:
            _run(stack, arguments.flights, arguments.keep)
    except (TaskQueueError, AirflowError, ModuleNotFoundError, RuntimeError) as error:
        sys.stderr.write(f"demo: {error}\n")
        return 1
    except KeyboardInterrupt:
        _say("Stopped.")
    return 0


def _run(stack: ExitStack, limit: int | None, keep: bool) -> None:
    """Start the servers and run the tour. The stack stops the servers."""
    _check_requirements()
    stack.callback(_say, "Stopped all servers.")
    own = os.environ.get("TASKQ_DSN")
    contents = "Airflow's own tables" if own else "all (set TASKQ_DSN to have the queue on another server)"
    _say(f"Starting an embedded PostgreSQL for {contents}.")
    server = stack.enter_context(EmbeddedPostgres())
    dsn = own or server.dsn
    _say("Installing the schema taskq, with an empty topic for the flights.")
    prepare(dsn)
    _say("Starting Airflow: api-server, scheduler, dag-processor, triggerer.")
    # In PostgreSQL, too: on a busy machine Airflow's processes lock each other out of an SQLite file.
    metadata = server.create_database("airflow")
    home = stack.enter_context(_home())
    site = stack.enter_context(AirflowSite(home, DAGS, metadata_dsn=metadata, env=environment(dsn)))
    _say(f"Airflow is up at {site.url} (user {site.username}, password {site.password}).")
    Tour(site, dsn, limit, _say).run()
    if keep:
        _say(f"\nStill running at {site.url} (user {site.username}, password {site.password}). Ctrl-C stops it.")
        _say(f"To try next, in another terminal:\n{next_commands(_program(), dsn, TOPIC)}")
        with suppress(KeyboardInterrupt):  # the usual end, after which the folder of Airflow is removed
            signal.pause()


@contextmanager
def _home() -> Iterator[Path]:
    """Yield a folder for Airflow's metadata and logs.

    The folder is kept if the demo fails, so that the logs can be read.
    """
    home = Path(tempfile.mkdtemp(prefix="taskq-demo-"))
    yield home
    shutil.rmtree(home)


def _program() -> Path:
    """Return the path of the command `taskq`, relative to this folder if it is below it."""
    found = Path(sys.executable).with_name("taskq")
    return found.relative_to(Path.cwd()) if found.is_relative_to(Path.cwd()) else found


def _check_requirements() -> None:
    """Raise an error for a missing requirement, before anything is started."""
    if not DAGS.is_dir():
        raise RuntimeError("the folder example_dags is missing: run the demo from a clone of the repository")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise RuntimeError("Spark needs Java 17 or newer, and no java is on the PATH: install it and run again")
    data_folder()


def _positive(text: str) -> int:
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
