"""Faults: what happens to a site while its processes work. Each is a function that returns when the fault is over."""

import errno
import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest

from airflow_provider_taskq.queue import verify
from airflow_provider_taskq.queue.errors import NewerSchema
from tests.chaos.site import Site
from tests.faults.releases import install_next_release

Fault = Callable[[Site, float], None]
END = """SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    ORDER BY random() LIMIT %s) s"""
READERS = 4


def times(seconds: float, every: float) -> Iterator[int]:
    """Counts, with a pause after each number, until the time is up."""
    end = time.monotonic() + seconds
    for number in itertools.count():
        yield number
        if time.monotonic() + every >= end:
            return
        time.sleep(every)  # the pace of the fault


def wait(_: Site, seconds: float) -> None:
    """No fault."""
    time.sleep(seconds)  # the length of the phase


def kill_processes(every: float, *names: str) -> Fault:
    """The named processes, or all, are killed by SIGKILL in turn, and started again."""

    def fault(site: Site, seconds: float) -> None:
        following = itertools.cycle(names or site.roles)
        for _ in times(seconds, every):
            name = next(following)
            site.kill(name)
            site.start(name)

    return fault


def terminate_sessions(rate: float) -> Fault:
    """This many sessions a second are ended by pg_terminate_backend."""

    def fault(site: Site, seconds: float) -> None:
        with psycopg.connect(site.dsn, autocommit=True) as conn:
            for _ in times(seconds, 1 / rate):
                conn.execute(END, (1,))

    return fault


def restart_server(site: Site, seconds: float) -> None:
    """The server is stopped, is down for two seconds, and starts again."""
    for _ in times(seconds, 8.0):
        site.server.stop()
        time.sleep(2.0)  # the server is down
        site.server.start()


def crash_server(site: Site, seconds: float) -> None:
    """The server is killed by SIGKILL with all of its processes, and starts again."""
    for _ in times(seconds, 5.0):
        os.killpg(os.getpgid(site.server.pid), signal.SIGKILL)
        site.server.stop()
        site.server.start()


def occupy_connections(count: int | None) -> Fault:
    """Idle sessions: as many as given, or as many as the server takes."""

    def fault(site: Site, seconds: float) -> None:
        with ExitStack() as stack:
            for number in itertools.count():
                if number == count:
                    break
                try:
                    stack.enter_context(psycopg.connect(site.dsn, autocommit=True))
                except psycopg.OperationalError:
                    if count is not None:
                        raise
                    break
            time.sleep(seconds)  # the length of the fault

    return fault


def idle_in_transaction(site: Site, seconds: float) -> None:
    """A session has pushed a task to another topic, and stays in its transaction."""
    with psycopg.connect(site.dsn) as conn:
        conn.execute("SELECT taskq.create_topic('other')")
        conn.execute("SELECT taskq.push('other', 'a')")
        time.sleep(seconds)  # the length of the fault
        conn.rollback()


def read_long(site: Site, seconds: float) -> None:
    """Four REPEATABLE READ transactions count the tasks ten times a second."""
    with ExitStack() as stack:
        readers = [stack.enter_context(psycopg.connect(site.dsn)) for _ in range(READERS)]
        for conn in readers:
            conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        for _ in times(seconds, 0.1):
            for conn in readers:
                conn.execute("SELECT count(*) FROM taskq.tasks WHERE state = 'READY'")


def limit_role(name: str, value: str) -> Fault:
    """A setting of the role applies to all sessions that begin in this time; the present ones end."""

    def fault(site: Site, seconds: float) -> None:
        with psycopg.connect(site.dsn, autocommit=True) as conn:
            conn.execute(f"ALTER ROLE taskq SET {name} = '{value}'".encode())
            conn.execute(END, (None,))
            time.sleep(seconds)  # the length of the fault
            conn.execute(f"ALTER ROLE taskq RESET {name}".encode())
            conn.execute(END, (None,))

    return fault


def freeze_connections(site: Site, seconds: float) -> None:
    """Connections fall silent: they accept bytes and deliver none. Every two seconds, half of those that are open."""
    for _ in times(seconds, 2.0):
        for link in site.proxied.links():
            if random.random() < 0.5:  # noqa: S311 -- which connections does not matter
                link.freeze()


def cut_connections(site: Site, seconds: float) -> None:
    """All connections are cut each second."""
    for _ in times(seconds, 1.0):
        site.proxied.cut()


def delay_connections(site: Site, seconds: float) -> None:
    """Each packet arrives 50 ms late, in both directions."""
    site.proxied.delay(0.05)
    time.sleep(seconds)  # the length of the fault
    site.proxied.delay(0.0)


def exhaust_pool(count: int) -> Fault:
    """Transactions of another program, which are idle, hold this many connections of the pool."""

    def fault(site: Site, seconds: float) -> None:
        with ExitStack() as stack:
            for _ in range(count):
                stack.enter_context(psycopg.connect(site.address)).execute("SELECT 1")
            time.sleep(seconds)  # the length of the fault

    return fault


def fill_disk(site: Site, seconds: float) -> None:
    """A file takes all the space that is left for the server's data."""
    ballast = site.server.folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 65536)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        time.sleep(seconds)  # the length of the fault
    ballast.unlink()
    site.server.stop("immediate")  # the server may have crashed, because it could not write its log
    site.server.start()


def upgrade(site: Site, seconds: float) -> None:
    """The next release upgrades the schema at work. Then each process starts again, with this package."""
    time.sleep(seconds / 3)  # the length of the phase
    install_next_release(site.dsn)
    time.sleep(seconds / 3)  # the length of the phase
    kill_processes(seconds / 3 / len(site.roles))(site, seconds / 3)
    with psycopg.connect(site.dsn) as conn, pytest.raises(NewerSchema):
        verify(conn)


def fail_over(site: Site, seconds: float) -> None:
    """The primary becomes read-only, its standby is promoted, and the primary ends. A proxy follows the address."""
    if site.pair is None:
        raise RuntimeError("the scenario has no standby")
    site.pair.fail_over()
    if site.proxy is not None:
        site.proxy.repoint("127.0.0.1", site.pair.standby.port)
    site.pair.primary.stop("immediate")
    site.server = site.pair.standby
    time.sleep(seconds)  # the length of the phase


def overload(rate: float) -> Fault:
    """A second producer pushes this many tasks a second."""

    def fault(site: Site, seconds: float) -> None:
        site.start("producer-2", rate=rate)
        time.sleep(seconds)  # the length of the fault
        site.stop("producer-2")

    return fault
