"""`python -m demo.shell [COMMAND]`: a shell, or one command, with an empty queue in a temporary PostgreSQL."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from airflow_provider_taskq.queue import connect, install
from demo.postgres import EmbeddedPostgres, EmbeddedPostgresError


def main() -> int:
    """Start the server, run the shell or the command, and stop the server. Return the exit code of the command."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit)  # so that the server is stopped
    try:
        with EmbeddedPostgres() as server:
            with connect(server.dsn) as conn:
                install(conn)
            if not sys.argv[1:]:
                sys.stdout.write("An empty queue is ready, in a temporary PostgreSQL. `exit` removes both.\n")
                sys.stdout.flush()
            return _run(sys.argv[1:] or [os.environ.get("SHELL", "/bin/sh")], server.dsn)
    except (EmbeddedPostgresError, FileNotFoundError) as error:
        sys.stderr.write(f"demo.shell: {error}\n")
        return 127


def _run(command: list[str], dsn: str) -> int:
    """Run a command with the database in TASKQ_DSN and `taskq` on the PATH. End it if this program is ended."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    children: list[subprocess.Popen[bytes]] = []
    ended_by: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        ended_by.append(number)  # raises nothing: the command may be just starting, and would be left behind
        hang_up()

    def hang_up() -> None:
        for child in children:
            child.send_signal(signal.SIGHUP)  # an interactive shell ignores SIGTERM

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, end)
    children.append(subprocess.Popen(command, env={**os.environ, "PATH": path, "TASKQ_DSN": dsn}))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the command, too
    if ended_by:
        hang_up()
    code = children[0].wait()
    if ended_by:
        return 128 + ended_by[0]
    return code if code >= 0 else 128 - code  # as a shell reports a signal


def _exit(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
