"""Queues in use that are restored: from a dump, and from the archive of the log up to a moment."""

import itertools
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_taskq.queue import (
    Insertion,
    LeaseLost,
    NewTask,
    Result,
    State,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
    connect,
    install,
    verify,
)
from demo.postgres import EmbeddedPostgres
from demo.postgres_binaries import server_programs, unprivileged_account
from tests.faults.servers import FAST, programs_of_tests
from tests.internals import contradictions, lapse_lease, passed_tasks, pretend_release
from tests.queue.conftest import skip_numbers, states, until

HOUR = timedelta(hours=1)
GROUP = "copies"
ARCHIVED = "SELECT coalesce(last_archived_wal, '') >= %s FROM pg_stat_archiver"
ONE_SIDED = """(SELECT identifier FROM business EXCEPT SELECT identifier FROM taskq.task_info)
    UNION ALL (SELECT identifier FROM taskq.task_info EXCEPT SELECT identifier FROM business)"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.timeout(1800),
    pytest.mark.promise("Nothing is lost"),
    pytest.mark.promise("PostgreSQL restarts"),
]


def check_whole(conn: psycopg.Connection) -> None:
    """The schema is that of the package, and no row contradicts another."""
    verify(conn)
    assert contradictions(conn) == []
    assert conn.execute(ONE_SIDED).fetchall() == [], "a business row without its task, or a task without its row"
    assert passed_tasks(conn) == []


def push(queue: TaskQueue, *identifiers: str) -> None:
    """Pushes tasks with their business rows in one transaction."""
    with queue.conn.transaction():
        queue.push("work", identifiers)
        for identifier in identifiers:
            queue.conn.execute("INSERT INTO business (identifier) VALUES (%s)", (identifier,))


class Use:
    """A queue in use: one thread pushes and displaces, another polls, completes, releases and reads the log.

    `warm` is set once the second has gone round ten times.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._over = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._work, args=(step,)) for step in (self._produce, self._consume)]
        self.warm = threading.Event()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        assert self._errors == []

    def _work(self, step: Callable[[TaskQueue, int], None]) -> None:
        try:
            with connect(self._dsn, autocommit=True) as conn:
                for number in itertools.takewhile(lambda _: not self._over.is_set(), itertools.count()):
                    step(TaskQueue(conn), number)
        except BaseException as error:
            self._errors.append(error)
            raise

    def _produce(self, queue: TaskQueue, number: int) -> None:
        push(queue, f"steady-{number % 7}", f"new-{number}")
        with queue.conn.transaction():
            queue.push("work", ["displaced"], Insertion.REPLACE)
            queue.conn.execute("INSERT INTO business (identifier) VALUES ('displaced')")

    def _consume(self, queue: TaskQueue, number: int) -> None:
        owner = queue.register(f"worker-{number % 3}", HOUR)
        tasks = queue.poll("work", owner, 5)
        queue.complete(owner, dict.fromkeys(tasks[:3], Result.SUCCESS))
        if number % 2:
            queue.release(owner)
        with queue.conn.transaction():
            if events := queue.events("work", queue.progress(GROUP, "work"), 20):
                queue.advance(GROUP, "work", 0, events[-1][0])
        if number == 10:
            self.warm.set()


def prepare(conn: psycopg.Connection) -> TaskQueue:
    """The schema, the topic, and the table of the business."""
    install(conn)
    conn.execute("CREATE TABLE business (identifier text NOT NULL)")
    queue = TaskQueue(conn)
    queue.create_topic("work", TopicPolicy(max_crashes=100))
    return queue


def goes_on(dsn: str) -> None:
    """A restored queue gives back what was held, hands out every task once, and its group reads on."""
    with connect(dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        fences = [owner.fence for owner in queue.owners()]
        push(queue, "after")
        lapse_lease(conn)
        queue.expire()
        owner = queue.register("successor", HOUR)
        assert all(owner.fence > fence for fence in fences)
        handed_out: list[int] = []
        while tasks := queue.poll("work", owner, 1000):
            handed_out += [task.sequence for task in tasks]
            queue.complete(owner, dict.fromkeys(tasks, Result.SUCCESS))
        assert len(handed_out) == len(set(handed_out)) > 0
        assert queue.count_tasks("work", state=State.READY) == queue.count_tasks("work", state=State.ACTIVE) == 0
        read = [event for _, event in queue.events("work", queue.progress(GROUP, "work"), 1_000_000)]
        assert read[-1].identifier == "after"
        check_whole(conn)


def has_its_access(conn: psycopg.Connection) -> None:
    """The role shop may push to its topic, and to no other."""
    with conn.transaction(force_rollback=True):
        conn.execute("SET LOCAL ROLE shop")
        TaskQueue(conn).push("orders", ["a"])
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            TaskQueue(conn).push("work", ["a"])


def test_a_queue_that_was_dumped_in_use_is_restored_whole_and_goes_on() -> None:
    account = unprivileged_account()
    with EmbeddedPostgres(settings=FAST, programs=programs_of_tests()) as server:
        programs = programs_of_tests() or server_programs(account, server.folder)
        with connect(server.dsn, autocommit=True) as conn:
            queue = prepare(conn)
            queue.create_topic("orders")
            conn.execute("CREATE ROLE shop; SELECT taskq.grant_access('shop', 'producer', '{orders}')")
        with Use(server.dsn) as use:
            assert use.warm.wait(600)
            dump = subprocess.run(
                [programs / "pg_dump", "--format=custom", f"--dbname={server.dsn}"], check=True, stdout=subprocess.PIPE
            )
            with connect(server.dsn, autocommit=True) as conn:  # the role has another number than in the dump
                conn.execute("DROP OWNED BY shop; DROP ROLE shop; CREATE ROLE shop")
        restored = server.create_database("restored")
        subprocess.run(
            [programs / "pg_restore", "--exit-on-error", f"--dbname={restored}"], check=True, input=dump.stdout
        )
        with connect(restored, autocommit=True) as conn:
            check_whole(conn)
            has_its_access(conn)
            pretend_release(conn)
            install(conn)
            has_its_access(conn)
        goes_on(restored)


@pytest.fixture
def archive() -> Iterator[Path]:
    """A folder in which the server may write."""
    with tempfile.TemporaryDirectory(prefix="taskq-archive-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        unprivileged_account().own(Path(folder))
        yield Path(folder)


def back_up(server: EmbeddedPostgres, target: EmbeddedPostgres) -> None:
    """Copies the data of a running server to one that has not started."""
    account = unprivileged_account()
    programs = programs_of_tests() or server_programs(account, server.folder)
    data = target.folder / "data"
    data.mkdir(mode=0o700)
    account.own(data)
    source = make_conninfo(server.dsn, dbname="")
    done = account.run([programs / "pg_basebackup", "-D", data, "-c", "fast", "-X", "none", "-d", source])
    assert done.returncode == 0, done.stdout
    shutil.copy(server.folder / "password", target.folder / "password")


def documented_settings(archive: Path, moment: datetime) -> list[str]:
    """The settings of docs/production/backup.md: of the server in use, and of the one that recovers."""
    page = (Path(__file__).parents[2] / "docs/production/backup.md").read_text(encoding="utf-8")
    archiving, _, recovering = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    settings = [block.replace("/archive", str(archive)) for block in (archiving, recovering)]
    return [re.sub(r"(recovery_target_time = ).*", rf"\1'{moment.isoformat()}'", block) for block in settings]


def recover_to(target: EmbeddedPostgres, archive: Path, moment: datetime) -> None:
    """Starts a server from its backup, and lets it read the archive up to a moment."""
    data = target.folder / "data"
    with (data / "postgresql.auto.conf").open("a", encoding="utf-8") as settings:
        settings.write(documented_settings(archive, moment)[1])
    (data / "recovery.signal").touch()
    unprivileged_account().own(data / "recovery.signal")
    target.start()


def archive_log(conn: psycopg.Connection) -> None:
    """Waits until the archive has all of the log."""
    [name] = conn.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchone() or ("",)
    until(lambda: conn.execute(ARCHIVED.encode(), (name,)).fetchone() == (True,))


def test_a_queue_in_use_is_recovered_to_a_moment_and_goes_on(archive: Path) -> None:
    lines = documented_settings(archive, datetime.now(UTC))[0].splitlines()
    archiving = {name: value.strip("'") for name, value in (line.split(" = ", 1) for line in lines)}
    with (
        EmbeddedPostgres(settings={**FAST, **archiving}, programs=programs_of_tests()) as server,
        closing(EmbeddedPostgres(settings=FAST, programs=programs_of_tests())) as recovered,
        connect(server.dsn, autocommit=True) as conn,
    ):
        queue = prepare(conn)
        with Use(server.dsn) as use:
            assert use.warm.wait(600)
            back_up(server, recovered)
            owner = queue.register("before", HOUR)
            with conn.transaction():
                queue.push("work", [NewTask("held", priority=100)])
                conn.execute("INSERT INTO business (identifier) VALUES ('held')")
                [held] = queue.poll("work", owner)
            moment = queue.now()
            queue.complete(owner, {held: Result.SUCCESS})
            late = queue.register("late", HOUR)
            push(queue, "lost")
        archive_log(conn)
        recover_to(recovered, archive, moment)
        with connect(recovered.dsn, autocommit=True) as restored:
            until(lambda: restored.execute("SELECT pg_is_in_recovery()").fetchone() == (False,))
            check_whole(restored)
            again = TaskQueue(restored)
            assert ("held", State.ACTIVE) in states(again)
            assert "lost" not in {identifier for identifier, _ in states(again)}
            with pytest.raises(LeaseLost):
                again.complete(late, {held: Result.SUCCESS})
            again.complete(owner, {held: Result.SUCCESS})  # its lease was restored with its task
        goes_on(recovered.dsn)


@pytest.mark.parametrize("skipped", [False, True], ids=["not skipped", "skipped"])
def test_a_worker_that_outlives_a_restore_loses_its_lease_once_the_numbers_are_skipped(
    own_dsn: str, server_dsn: str, skipped: bool
) -> None:
    name = f"taskq_restored_{uuid4().hex[:8]}"
    with psycopg.connect(server_dsn, autocommit=True) as admin, connect(own_dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        queue.create_topic("work")
        queue.push("work", ["a"])
        conn.close()
        original = str(conninfo_to_dict(own_dsn)["dbname"])
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(original)))
        with (
            connect(own_dsn, autocommit=True) as old,
            connect(make_conninfo(own_dsn, dbname=name), autocommit=True) as new,
        ):
            outliving = TaskQueue(old).register("worker")
            TaskQueue(old).push("work", ["b", "c"])
            place = TaskQueue(old).events("work", None).cursor
            if skipped:
                skip_numbers(new)
            restored = TaskQueue(new)
            if skipped:
                restored.push("work", ["later"])
                assert [task.identifier for _, task in restored.events("work", place)] == ["later"]
            else:
                with pytest.raises(TaskQueueError, match=f"after place {place}: the last number of this database is 1"):
                    restored.events("work", place)
            successor = restored.register("worker")
            [task] = restored.poll("work", successor)
            assert (successor.fence == outliving.fence) is not skipped
            if skipped:
                with pytest.raises(LeaseLost):
                    restored.complete(outliving, {task: Result.SUCCESS})
                restored.complete(successor, {task: Result.SUCCESS})
            else:  # the queue takes both for one owner
                restored.complete(outliving, {task: Result.SUCCESS})
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
