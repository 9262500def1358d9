"""PgBouncer before a server: sessions of clients share a few connections, each for the length of a transaction."""

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from demo.postgres_binaries import unprivileged_account
from demo.processes import free_port

PROGRAM = Path("/usr/sbin/pgbouncer")  # Debian's package pgbouncer
START_SECONDS = 60.0
CONFIGURATION = """[databases]
{dbname} = host={host} port={port} dbname={dbname} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 200
server_login_retry = 1
logfile = {folder}/pgbouncer.log
"""


class Pooler:
    """A PgBouncer in transaction mode with at most `size` connections to the server of a DSN."""

    def __init__(self, dsn: str, size: int) -> None:
        self._server = conninfo_to_dict(dsn)
        self._account = unprivileged_account()
        self._folder = tempfile.TemporaryDirectory(prefix="taskq-pooler-", dir="/tmp")
        self._port = free_port()
        file = Path(self._folder.name) / "pgbouncer.ini"
        values = {**self._server, "listen": self._port, "size": size, "folder": self._folder.name}
        file.write_text(CONFIGURATION.format(**values), encoding="utf-8")
        file.chmod(0o600)
        self._account.own(Path(self._folder.name))
        self._file = file
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        """The DSN of the server's database through the pooler."""
        return make_conninfo(
            host="127.0.0.1", port=self._port, user=self._server["user"], dbname=self._server["dbname"]
        )

    def __enter__(self) -> Self:
        user, group = self._account.ids or (None, None)
        self._process = subprocess.Popen(
            [PROGRAM, "-q", self._file], user=user, group=group, extra_groups=[] if self._account.ids else None
        )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.dsn, autocommit=True).close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    self.close()
                    raise
                time.sleep(0.05)  # the program sends no event when it listens
            else:
                return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the pooler, and removes its folder."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGTERM)
            self._process.wait()
            self._process = None
        self._folder.cleanup()
