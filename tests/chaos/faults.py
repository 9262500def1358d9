"""Faults: what happens to a site while its processes work.

Each is a function that returns when the fault is over. It may return a sentence for the report.
"""

import itertools
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial

import psycopg
import pytest

from airflow_provider_taskq.queue import NewTask, TaskQueue, verify
from airflow_provider_taskq.queue.errors import NewerSchema
from tests.chaos.history import Recorder
from tests.chaos.programs import TOPIC
from tests.chaos.site import Site
from tests.faults.releases import install_next_release
from tests.faults.small_disk import filled
from tests.internals import block_verbs
from tests.queue.conftest import until

Fault = Callable[[Site, float], str | None]
END = """SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    ORDER BY random() LIMIT %s) s"""
# Sessions that do not belong to the program with these processes.
END_OTHERS = """SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
        AND pid <> ALL (%s) ORDER BY random() LIMIT %s) s"""
READERS = 4
SECONDS = 600.0  # for a backlog
BACKLOG = 5_000  # tasks, which show for 20 seconds how much the workers can handle
MARGIN = 1.03  # for the rate of an overload: the rate that was measured before it is not exact


def times(seconds: float, every: float, least: int = 1) -> Iterator[int]:
    """Counts, with a pause between two numbers, until the time is up and at least this many were counted."""
    end = time.monotonic() + seconds
    for number in itertools.count(1):
        yield number
        if number >= least and time.monotonic() + every > end:
            return
        time.sleep(every)  # the pace of the fault


def wait(_: Site, seconds: float) -> None:
    """No fault."""
    time.sleep(seconds)  # the length of the phase


def kill_processes(every: float, *names: str) -> Fault:
    """The named processes, or all, are killed by SIGKILL in turn, each at least once, and started again."""

    def fault(site: Site, seconds: float) -> str:
        victims = names or tuple(site.roles)
        following = itertools.cycle(victims)
        kills = 0
        for kills in times(seconds, every, len(victims)):  # noqa: B007 -- the last number is the count
            name = next(following)
            site.kill(name)
            site.start(name)
        return f"{kills} kills"

    return fault


def terminate_sessions(rate: float) -> Fault:
    """This many sessions a second are ended by pg_terminate_backend."""

    def fault(site: Site, seconds: float) -> str:
        with psycopg.connect(site.dsn, autocommit=True) as conn:
            ended = sum(conn.execute(END, (1,)).rowcount for _ in times(seconds, 1 / rate))
        return _hit(ended, "sessions were ended")

    return fault


def kill_with_tasks(every: float, name: str) -> Fault:
    """A process is killed by SIGKILL while it has tasks that it has claimed since its start, and started again."""

    def fault(site: Site, seconds: float) -> str:
        since, kills = 0.0, 0
        for _ in times(seconds, every):
            until(partial(site.claimed, name, since), SECONDS, 0.1)
            until(partial(_stop_with_tasks, site, name, 0.1, since), SECONDS)
            site.kill(name)
            since, kills = time.monotonic(), kills + 1
            site.start(name)
        return f"{kills} kills, each while it had tasks"

    return fault


def stop_processes(length: float) -> Fault:
    """Each worker and reader is stopped by SIGSTOP, a worker while it has tasks, and continued after a while."""

    def fault(site: Site, _: float) -> str:
        readers = [name for name, role in site.roles.items() if role == "read"]
        for name in (*site.workers, *readers):
            if name in readers:
                site.processes[name].send_signal(signal.SIGSTOP)
            else:
                until(partial(_stop_with_tasks, site, name, 1.0), SECONDS)
            time.sleep(length)  # the length of the stop
            site.processes[name].send_signal(signal.SIGCONT)
        return f"stopped: {', '.join((*site.workers, *readers))}"

    return fault


def _stop_with_tasks(site: Site, name: str, pause: float, since: float = 0.0) -> bool:
    """Whether the process is stopped and has tasks. Otherwise it goes on."""
    site.processes[name].send_signal(signal.SIGSTOP)
    time.sleep(pause)  # the server executes what the process has sent: perhaps the decision on these tasks
    if site.holds_tasks(name, since):
        return True
    site.processes[name].send_signal(signal.SIGCONT)
    return False


def restart_server(site: Site, seconds: float) -> None:
    """The server is stopped, is down for two seconds, and starts again. It runs for eight seconds in between."""
    for _ in times(seconds, 8.0):
        site.server.stop()
        time.sleep(2.0)  # the server is down
        site.server.start()


def crash_server(site: Site, seconds: float) -> None:
    """The server is killed by SIGKILL with all of its processes, and starts again."""
    for _ in times(seconds, 5.0):
        site.server.kill()
        site.server.start()


def occupy_connections(count: int) -> Fault:
    """Idle sessions."""

    def fault(site: Site, seconds: float) -> None:
        with ExitStack() as stack:
            for _ in range(count):
                stack.enter_context(psycopg.connect(site.dsn, autocommit=True))
            time.sleep(seconds)  # the length of the fault

    return fault


def take_all_connections(site: Site, seconds: float) -> str:
    """Another program takes each free slot at once. Two sessions a second are ended, and may not get a slot again."""
    refused = 0
    with ExitStack() as stack:
        ending = stack.enter_context(psycopg.connect(site.dsn, autocommit=True))
        taken: list[psycopg.Connection] = []
        for number in times(seconds, 0.05):
            try:
                while True:
                    taken.append(stack.enter_context(psycopg.connect(site.dsn, autocommit=True)))
            except psycopg.OperationalError:
                refused += 1
            if number % 10 == 1:
                ending.execute(END_OTHERS, ([conn.info.backend_pid for conn in taken], 1))
    return f"the other program had {len(taken)} connections in the end, and was refused {refused} times"


def idle_in_transaction(site: Site, seconds: float) -> None:
    """A producer has pushed a task, and stays in its transaction until the end of the fault."""
    rows = [{"task": "idle", "identifier": "idle"}]
    with Recorder(site.history, "idle") as recorder, psycopg.connect(site.dsn) as conn:
        began = time.monotonic()
        recorder.write("push", began, None, rows)
        TaskQueue(conn).push(TOPIC, [NewTask("idle", {"key": "idle"})])
        time.sleep(seconds)  # the length of the fault
        conn.commit()
        recorder.write("push", began, time.monotonic(), rows)


def read_long(site: Site, seconds: float) -> None:
    """Four REPEATABLE READ transactions count the tasks ten times a second."""
    with ExitStack() as stack:
        readers = [stack.enter_context(psycopg.connect(site.dsn)) for _ in range(READERS)]
        for conn in readers:
            conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        for _ in times(seconds, 0.1):
            for conn in readers:
                conn.execute("SELECT count(*) FROM taskq.tasks WHERE state = 'READY'")


def limit_role(name: str, value: str, error: str) -> Fault:
    """A setting of the role applies to all sessions that begin in this time; the present ones end.

    Each second another session locks the waiting tasks for 0.2 s. Raises RuntimeError if the setting has hit nothing.
    """

    def fault(site: Site, seconds: float) -> str:
        with psycopg.connect(site.dsn, autocommit=True) as conn:
            before = site.server.log.read_text(errors="replace").count(error)
            conn.execute(f"ALTER ROLE taskq SET {name} = '{value}'".encode())
            conn.execute(END, (None,))
            for _ in times(seconds, 1.0):
                with conn.transaction():
                    block_verbs(conn)
                    time.sleep(0.2)  # the length of the lock
            conn.execute(f"ALTER ROLE taskq RESET {name}".encode())
            conn.execute(END, (None,))
        hits = site.server.log.read_text(errors="replace").count(error) - before
        if not hits:
            raise RuntimeError(f"{name} has hit nothing")
        return f"it has hit {hits} times"

    return fault


def freeze_connections(site: Site, seconds: float) -> str:
    """Connections fall silent: they accept bytes and deliver none. Every two seconds, half of those that are open."""
    count = 0
    for _ in times(seconds, 2.0):
        for link in site.proxied.links():
            if random.random() < 0.5:  # noqa: S311 -- which connections does not matter
                count += 1 - link.is_frozen
                link.freeze()
    return _hit(count, "connections fell silent")


def leave_half_open(site: Site, seconds: float) -> str:
    """The same, and the server still sees the connections as open when their clients have closed them."""
    site.proxied.keep_server_ends(True)
    note = freeze_connections(site, seconds)
    site.proxied.keep_server_ends(False)
    return note


def cut_connections(every: float) -> Fault:
    """All connections are cut, again and again."""

    def fault(site: Site, seconds: float) -> str:
        return _hit(sum(site.proxied.cut() for _ in times(seconds, every)), "connections were cut")

    return fault


def _hit(count: int, what: str) -> str:
    """The sentence of a fault for the report. Raises RuntimeError if it has hit nothing."""
    if not count:
        raise RuntimeError(f"no {what}")
    return f"{count:,} {what}"


def check_clocks(offsets: Mapping[str, float]) -> Fault:
    """No other fault than clocks that are wrong by hours. Raises RuntimeError if the clock of a process is right."""

    def fault(site: Site, seconds: float) -> str:
        found = {name: site.clock_of(name) / 3_600 for name in offsets}
        if any(abs(found[name] - hours) > 0.1 for name, hours in offsets.items()):
            raise RuntimeError(f"the clocks are wrong by other hours: {found}")
        time.sleep(seconds)  # the length of the phase
        return ", ".join(f"{name}: {hours:+.1f} hours" for name, hours in found.items())

    return fault


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


def fill_disk(site: Site, seconds: float) -> str:
    """A file takes all the space that is left for the server's data."""
    with filled(site.server.folder):
        time.sleep(seconds)  # the length of the fault
    site.server.stop("immediate")  # the server may have crashed, because it could not write its log
    site.server.start()
    return _hit(site.server.log.read_text(errors="replace").count("No space left on device"), "calls found no space")


def upgrade(site: Site, seconds: float) -> str | None:
    """The next release upgrades the schema at work. Then each process starts again, with this package."""
    time.sleep(seconds / 3)  # the length of the phase
    install_next_release(site.dsn)
    time.sleep(seconds / 3)  # the length of the phase
    note = kill_processes(seconds / 3 / len(site.roles))(site, seconds / 3)
    with psycopg.connect(site.dsn) as conn, pytest.raises(NewerSchema):
        verify(conn)
    return note


def switch_over(site: Site, seconds: float) -> None:
    """The primary becomes read-only, its standby is promoted, and the primary ends. A proxy follows the address."""
    site.servers.fail_over()
    _follow(site)
    site.servers.primary.stop("immediate")
    time.sleep(seconds)  # the length of the phase


def fail_over(site: Site, seconds: float) -> None:
    """The primary is killed by SIGKILL, and its standby is promoted. A proxy follows the address."""
    site.servers.lose_primary()
    _follow(site)
    time.sleep(seconds)  # the length of the phase


def _follow(site: Site) -> None:
    if site.proxy is not None:
        site.proxy.repoint("127.0.0.1", site.servers.standby.port)
    site.server = site.servers.standby


def mislead(site: Site, seconds: float) -> None:
    """The address of the primary leads to its standby repeatedly. Only new connections reach the primary again."""
    for _ in times(seconds, 1.0, 4):
        site.proxied.repoint("127.0.0.1", site.servers.standby.port)
        site.proxied.cut()
        time.sleep(1.0)  # in which the programs connect again
        site.proxied.repoint("127.0.0.1", site.server.port)


def overload(factor: float) -> Fault:
    """First a backlog shows how much the workers can handle. Then the producers push this many times as much."""

    def fault(site: Site, seconds: float) -> str:
        site.start("producer-2", rate=500.0)
        until(lambda: site.ready() > BACKLOG, SECONDS)
        site.stop("producer-2")
        capacity = site.decisions_per_second(20.0)
        site.start("producer-2", rate=factor * MARGIN * capacity - site.options.rate)
        began, before = time.monotonic(), site.pushed()
        handled = site.decisions_per_second(seconds)
        pushed = (site.pushed() - before) / (time.monotonic() - began)
        site.stop("producer-2")
        if pushed < factor * handled:
            raise RuntimeError(f"{pushed:,.0f} tasks a second were pushed, and {handled:,.0f} handled")
        return f"{pushed:,.0f} tasks a second were pushed, {pushed / handled:.2f} times the {handled:,.0f} handled"

    return fault
