"""`taskq doctor`: each finding is provoked, and its remedy is carried out if a program can do that."""

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq import __version__
from airflow_provider_taskq.cli._distributions import CORE, FULL
from airflow_provider_taskq.cli._installation import check_packages
from airflow_provider_taskq.queue import Decision, Owner, Result, TaskQueue, connect
from tests.cli.conftest import Run
from tests.internals import Release, block_verbs, make_upkeep_due, plant_change, pretend_release, stop_autovacuum
from tests.queue.conftest import flush_statistics, lapse, pass_time

pytestmark = pytest.mark.promise("`taskq doctor` names each problem with a remedy that mends it")

Doctor = Callable[..., dict[str, Any]]
MakeRole = Callable[..., str]


@pytest.fixture
def doctor(run: Run, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """Runs `taskq doctor`, on another database if one is given. Returns the worst finding of each subject."""

    def doctor(*words: object, code: int = 0, on: str | None = None) -> dict[str, Any]:
        if on is not None:
            monkeypatch.setenv("TASKQ_DSN", on)
        findings = json.loads(run("doctor", "--format", "json", *words, code=code).stdout)["findings"]
        return {finding["subject"]: finding for finding in reversed(findings)}

    return doctor


@pytest.fixture
def carry_out(run: Run) -> Callable[[dict[str, Any]], None]:
    """Carries out the remedy of a finding that consists of commands of `taskq`."""

    def carry_out(finding: dict[str, Any]) -> None:
        for command in finding["remedy"].split(" && "):
            name, *words = shlex.split(command)
            assert name == "taskq"
            run(*words)

    return carry_out


CarryOut = Callable[[dict[str, Any]], None]


@pytest.fixture
def make_role(own_dsn: str) -> Iterator[MakeRole]:
    """Creates a role, grants it access, and returns the DSN of its database."""
    made = []
    with connect(own_dsn, autocommit=True) as conn:

        def make(*grants: str, topics: list[str] | None = None) -> str:
            name = f"o'role {uuid4().hex[:8]}"
            made.append(sql.Identifier(name))
            conn.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'plain'").format(made[-1]))
            for kind in grants:
                conn.execute("SELECT taskq.grant_access(%s, %s, %s)", (name, kind, topics))
            return make_conninfo(own_dsn, user=name, password="plain")

        yield make
        for role in made:
            conn.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(role))
            conn.execute(sql.SQL("DROP ROLE {}").format(role))


def install_fake(monkeypatch: pytest.MonkeyPatch, folder: Path, *packages: tuple[str, str, str]) -> None:
    """Add the metadata of distributions to the path: name, version and requirement. They came from a package index."""
    for name, version, needs in packages:
        made = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        made.mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (made / "METADATA").write_text(metadata + (f"Requires-Dist: {needs}\n" if needs else ""))
    monkeypatch.syspath_prepend(str(folder))


class TestInstallation:
    def test_a_fresh_installation_is_fine_and_each_check_says_what_it_found(
        self, run: Run, doctor: Doctor, own_dsn: str
    ) -> None:
        found = doctor(on=own_dsn)
        assert {finding["severity"] for finding in found.values()} == {"FINE"}
        assert {"packages", "connection", "clock", "schema", "grants", "dead rows", "connections"} <= set(found)
        assert __version__ in found["packages"]["detail"]
        assert "psycopg 3." in found["packages"]["detail"]
        assert found["connection"]["detail"].startswith("PostgreSQL ")
        assert run("doctor").stdout == "All subjects are fine.\n"
        assert len(run("doctor", "--all").stdout.splitlines()) > len(found)

    def test_a_missing_schema_is_critical_and_taskq_install_mends_it(
        self, doctor: Doctor, carry_out: CarryOut, empty_dsn: str
    ) -> None:
        found = doctor(on=empty_dsn, code=1)
        assert (found["schema"]["severity"], found["schema"]["remedy"]) == ("CRITICAL", "taskq install")
        assert "dead rows" not in found
        carry_out(found["schema"])
        assert doctor()["schema"]["severity"] == "FINE"

    def test_functions_of_an_older_release_are_critical_and_an_upgrade_mends_it(
        self, doctor: Doctor, carry_out: CarryOut, own_dsn: str
    ) -> None:
        with connect(own_dsn, autocommit=True) as conn:
            pretend_release(conn)
        found = doctor(on=own_dsn, code=1)["schema"]
        assert (found["severity"], found["remedy"]) == ("CRITICAL", "taskq upgrade")
        assert "functions or views" in found["detail"]
        carry_out(found)
        assert doctor()["schema"]["severity"] == "FINE"

    @pytest.mark.parametrize("release", ["newer", "newer functions", "other migration"])
    def test_a_schema_of_another_release_asks_for_another_package(
        self, doctor: Doctor, own_dsn: str, release: Release, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        with connect(own_dsn, autocommit=True) as conn:
            pretend_release(conn, release)
        install_fake(monkeypatch, tmp_path, (CORE, __version__, ""), (FULL, __version__, ""))
        found = doctor(on=own_dsn, code=1)["schema"]
        assert (found["severity"], found["remedy"]) == ("CRITICAL", f"pip install --upgrade {FULL}")

    @pytest.mark.parametrize(
        ("lost", "name"),
        [("VIEW taskq.tasks CASCADE", "taskq.tasks"), ("FUNCTION taskq.heartbeat", "taskq.heartbeat")],
    )
    def test_a_lost_view_or_function_is_critical_and_another_installation_mends_it(
        self, doctor: Doctor, carry_out: CarryOut, own_dsn: str, lost: str, name: str
    ) -> None:
        with connect(own_dsn, autocommit=True) as conn:
            conn.execute(f"DROP {lost}".encode())
        found = doctor(on=own_dsn, code=1)["schema"]
        assert found["severity"] == "CRITICAL"
        assert name in found["detail"]
        carry_out(found)
        assert doctor()["schema"]["severity"] == "FINE"

    def test_a_schema_without_the_readable_views_is_a_notice(
        self, run: Run, doctor: Doctor, carry_out: CarryOut, own_dsn: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TASKQ_DSN", own_dsn)
        run("install", "--no-views")
        found = doctor()["schema"]
        assert (found["severity"], found["remedy"]) == ("NOTICE", "taskq install --views")
        carry_out(found)
        assert doctor()["schema"]["severity"] == "FINE"

    def test_a_server_that_cannot_be_reached_is_critical_and_the_packages_are_checked_all_the_same(
        self, doctor: Doctor
    ) -> None:
        found = doctor(on="postgresql://u@127.0.0.1:1/x?connect_timeout=2", code=1)
        assert set(found) == {"packages", "connection"}
        assert found["connection"]["severity"] == "CRITICAL"
        assert "TASKQ_DSN" in found["connection"]["remedy"]

    def test_a_clock_that_is_wrong_is_reported_with_its_direction(self, doctor: Doctor, own_dsn: str) -> None:
        with connect(own_dsn, autocommit=True) as conn:
            conn.execute("CREATE SCHEMA shifted")
            conn.execute(
                "CREATE FUNCTION shifted.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS"
                " $$ SELECT pg_catalog.clock_timestamp() - current_setting('shift.by')::interval $$"
            )
        shifted = make_conninfo(own_dsn, options="-csearch_path=shifted,pg_catalog -cshift.by=5min")
        found = doctor(on=shifted, code=1)["clock"]
        assert (found["severity"], found["value"]) == ("WARNING", 300)
        assert "this machine is 300.0 s ahead of the server's" in found["detail"]
        shifted = make_conninfo(own_dsn, options="-csearch_path=shifted,pg_catalog -cshift.by=-4s")
        found = doctor(on=shifted)["clock"]
        assert (found["severity"], found["value"]) == ("NOTICE", 4)
        assert "4.0 s behind the server's" in found["detail"]

    def test_a_check_that_ends_with_an_error_is_a_finding_and_no_traceback(self, doctor: Doctor, own_dsn: str) -> None:
        with connect(own_dsn) as conn:
            block_verbs(conn)
            found = doctor(on=make_conninfo(own_dsn, options="-clock_timeout=50"), code=1)
        assert found["checks"]["severity"] == "CRITICAL"
        assert "lock timeout" in found["checks"]["detail"]


class TestPackages:
    def test_both_distributions_at_once_are_a_warning(
        self, doctor: Doctor, dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        install_fake(monkeypatch, tmp_path, (FULL, __version__, ""), (CORE, __version__, ""))
        found = doctor(on=dsn, code=1)["packages"]
        assert found["severity"] == "WARNING"
        again = f"pip install --force-reinstall --no-deps {FULL}=={__version__}"
        assert found["remedy"] == f"pip uninstall -y {CORE} && {again}"

    @pytest.mark.parametrize(
        ("recorded", "arguments"),
        [
            ({"url": "file:///srv/a%20clone", "dir_info": {}}, "file:///srv/a%20clone"),
            ({"url": "file:///srv/clone", "dir_info": {"editable": True}}, "--editable file:///srv/clone"),
            ({"url": "file:///srv/core.whl", "archive_info": {}}, "file:///srv/core.whl"),
            (
                {"url": "https://host/repo", "vcs_info": {"vcs": "git", "commit_id": "1"}, "subdirectory": "core"},
                "'git+https://host/repo#subdirectory=core'",
            ),
        ],
    )
    def test_a_remedy_installs_again_from_where_the_distribution_came(
        self, recorded: dict[str, Any], arguments: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        install_fake(monkeypatch, tmp_path, (FULL, "0.0.1", ""))
        (info,) = tmp_path.glob("*.dist-info")
        (info / "direct_url.json").write_text(json.dumps(recorded))
        remedies = [found.remedy for found in check_packages()]
        assert f"pip install --force-reinstall --no-deps {arguments}" in remedies

    def test_a_distribution_of_another_version_than_the_imported_package_is_a_warning(
        self, doctor: Doctor, dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        install_fake(monkeypatch, tmp_path, (FULL, "0.0.1", ""))
        found = doctor(on=dsn, code=1)["packages"]
        assert found["severity"] == "WARNING"
        assert f"0.0.1 is installed, but the imported package is {__version__}" in found["detail"]

    def test_a_psycopg_that_is_too_old_is_a_warning(
        self, doctor: Doctor, dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        install_fake(monkeypatch, tmp_path, (FULL, __version__, "psycopg[binary]>=99.1"))
        found = doctor(on=dsn, code=1)["packages"]
        assert (found["severity"], found["remedy"]) == ("WARNING", "pip install --upgrade 'psycopg[binary]>=99.1'")


class TestGrants:
    def test_a_role_without_rights_is_told_so_and_the_grant_mends_it(
        self, doctor: Doctor, carry_out: CarryOut, make_role: MakeRole, own_dsn: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stranger = make_role()
        found = doctor(on=stranger, code=1)["grants"]
        assert found["severity"] == "CRITICAL"
        assert "may not use the schema taskq" in found["detail"]
        monkeypatch.setenv("TASKQ_DSN", own_dsn)
        carry_out(found)
        found = doctor(on=stranger)["grants"]
        assert (found["severity"], "may not call taskq.health" in found["detail"]) == ("NOTICE", True)

    def test_a_consumer_is_told_that_only_a_reader_may_check_the_database(
        self, doctor: Doctor, carry_out: CarryOut, make_role: MakeRole, own_dsn: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        consumer = make_role("consumer")
        found = doctor(on=consumer)
        assert "dead rows" not in found
        monkeypatch.setenv("TASKQ_DSN", own_dsn)
        carry_out(found["grants"])
        found = doctor(on=consumer)
        assert found["grants"]["detail"].endswith("has access as consumer, reader")
        assert "dead rows" in found

    def test_a_kind_of_access_that_is_needed_and_missing_is_critical(
        self, doctor: Doctor, carry_out: CarryOut, make_role: MakeRole, own_dsn: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reader = make_role("reader")
        assert doctor("--needs", "reader", on=reader)["grants"]["severity"] == "FINE"
        found = doctor("--needs", "producer", "--needs", "reader", code=1)["grants"]
        assert (found["severity"], found["detail"].endswith("has no access as producer")) == ("CRITICAL", True)
        monkeypatch.setenv("TASKQ_DSN", own_dsn)
        carry_out(found)
        assert doctor("--needs", "producer", on=reader)["grants"]["severity"] == "FINE"

    def test_a_role_that_lost_one_function_is_a_warning_and_another_grant_mends_it(
        self, doctor: Doctor, carry_out: CarryOut, make_role: MakeRole, own_dsn: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        consumer = make_role("consumer")
        with connect(own_dsn, autocommit=True) as conn, connect(consumer) as its:
            role = sql.Identifier(its.info.user)
            conn.execute(sql.SQL("REVOKE EXECUTE ON FUNCTION taskq.heartbeat FROM {}").format(role))
        found = doctor(on=consumer, code=1)["grants"]
        assert (found["severity"], found["detail"].endswith("lacks rights as consumer")) == ("WARNING", True)
        monkeypatch.setenv("TASKQ_DSN", own_dsn)
        carry_out(found)
        doctor(on=consumer)

    def test_access_to_some_topics_is_named(
        self, run: Run, make_role: MakeRole, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TASKQ_DSN", make_role("consumer", topics=["orders"]))
        findings = json.loads(run("doctor", "--json").stdout)["findings"]
        assert any(each["detail"].endswith("has access as consumer of some topics") for each in findings)


class TestDatabase:
    def test_a_lapsed_lease_fails_by_its_severity_and_its_remedy_mends_it(
        self, doctor: Doctor, carry_out: CarryOut, run: Run, queue: TaskQueue, owner: Owner
    ) -> None:
        queue.push("work", ["a"])
        queue.poll("work", owner)
        lapse(queue, owner, timedelta(minutes=6))
        found = doctor(code=1)["lapsed leases"]
        assert found["severity"] == "WARNING"
        doctor("--fail-on", "CRITICAL")
        lapse(queue, owner, timedelta(hours=2))
        doctor("--fail-on", "CRITICAL", code=1)
        doctor("--fail-on", "NEVER")
        text = run("doctor", code=1).stdout
        assert text.splitlines()[2].startswith("CRITICAL")
        assert found["remedy"] in text.partition("What mends it")[2]
        carry_out(found)
        assert doctor()["lapsed leases"]["severity"] == "FINE"

    def test_ended_tasks_without_a_retention_are_a_notice_and_its_remedy_mends_it(
        self, doctor: Doctor, carry_out: CarryOut, queue: TaskQueue, owner: Owner
    ) -> None:
        assert doctor()["retention"]["severity"] == "FINE"
        task = queue.push("work", ["a"])[0]
        queue.poll("work", owner)
        queue.complete(owner, {task: Result.SUCCESS})
        found = doctor()["retention"]
        assert (found["severity"], found["topic"]) == ("NOTICE", "work")
        assert "forever" in found["detail"]
        carry_out(found)
        assert doctor()["retention"]["severity"] == "FINE"

    def test_a_lease_without_a_program_that_runs_upkeep_is_a_notice_and_its_remedy_mends_it(
        self, doctor: Doctor, carry_out: CarryOut, queue: TaskQueue, owner: Owner
    ) -> None:
        assert doctor()["upkeep"]["severity"] == "FINE"
        make_upkeep_due(queue.conn, timedelta(hours=1))
        found = doctor()["upkeep"]
        assert (found["severity"], found["owner"]) == ("NOTICE", owner.name)
        assert "no program has called taskq.maintain() for 60 min" in found["detail"]
        carry_out(found)
        assert doctor()["upkeep"]["severity"] == "FINE"

    def test_tasks_that_no_program_removes_are_a_warning_and_its_remedy_mends_it(
        self, doctor: Doctor, carry_out: CarryOut, queue: TaskQueue, owner: Owner
    ) -> None:
        queue.alter_topic("work", keep_succeeded="1h")
        task = queue.push("work", ["a"])[0]
        queue.poll("work", owner)
        queue.complete(owner, {task: Result.SUCCESS})
        pass_time(queue, timedelta(hours=3))
        make_upkeep_due(queue.conn, timedelta(hours=2))
        found = doctor(code=1)["upkeep"]
        assert (found["severity"], found["topic"]) == ("WARNING", "work")
        carry_out(found)
        assert doctor()["upkeep"]["severity"] == "FINE"

    def test_a_paused_topic_is_a_notice_that_fails_only_if_asked(
        self, doctor: Doctor, carry_out: CarryOut, queue: TaskQueue
    ) -> None:
        queue.create_topic("it's new")
        queue.push("it's new", ["a"])
        queue.pause_topic("it's new")
        pass_time(queue, timedelta(minutes=6))
        found = doctor()["waiting tasks"]
        assert (found["severity"], found["topic"]) == ("NOTICE", "it's new")
        doctor("--fail-on", "notice", code=1)
        carry_out(found)
        assert doctor(code=1)["waiting tasks"]["remedy"].startswith("taskq worker MODULE:FUNCTION --topic ")

    def test_the_time_that_a_task_may_wait_is_an_option(self, doctor: Doctor, queue: TaskQueue) -> None:
        queue.push("work", ["a"])
        pass_time(queue, timedelta(minutes=6))
        assert doctor(code=1)["waiting tasks"]["severity"] == "WARNING"
        assert doctor("--patience", "1h")["waiting tasks"]["severity"] == "FINE"

    def test_failures_are_found_with_the_command_that_lists_them(
        self, doctor: Doctor, carry_out: CarryOut, queue: TaskQueue, owner: Owner
    ) -> None:
        queue.push("work", [str(number) for number in range(8)])
        tasks = queue.poll("work", owner, 8)
        queue.complete(owner, dict.fromkeys(tasks, Decision(Result.FAILURE, error="no such mailbox")))
        found = doctor(code=1)["failures"]
        assert (found["severity"], found["remedy"]) == ("CRITICAL", "taskq errors work")
        carry_out(found)

    def test_a_full_database_is_critical(self, doctor: Doctor, own_dsn: str) -> None:
        with ExitStack() as stack:
            conn = stack.enter_context(connect(own_dsn, autocommit=True))
            conn.execute(sql.SQL("ALTER DATABASE {} CONNECTION LIMIT 4").format(sql.Identifier(conn.info.dbname)))
            for _ in range(2):
                stack.enter_context(connect(own_dsn))
            found = doctor(on=own_dsn, code=1)["connections"]
        assert (found["severity"], found["value"]) == ("CRITICAL", 4)

    def test_a_table_without_autovacuum_is_critical_and_its_remedy_mends_it(self, doctor: Doctor, own_dsn: str) -> None:
        with connect(own_dsn, autocommit=True) as conn:
            stop_autovacuum(conn)
            queue = TaskQueue(conn)
            queue.create_topic("work")
            queue.push("work", [str(number) for number in range(1100)])
            queue.claim("work", queue.register("owner"), 1100)
            flush_statistics(conn)
            found = doctor(on=own_dsn, code=1)["dead rows"]
            assert found["severity"] == "CRITICAL"
            for statement in found["remedy"].split("; "):
                conn.execute(statement.encode())
            flush_statistics(conn)
            assert doctor(on=own_dsn)["dead rows"]["severity"] == "FINE"

    def test_a_transaction_that_holds_back_vacuum_is_named_and_its_remedy_ends_it(
        self, doctor: Doctor, own_dsn: str
    ) -> None:
        with connect(own_dsn, autocommit=True) as conn, closing(connect(own_dsn)) as holder:
            plant_change(conn, "health judges young transactions")  # a test cannot wait ten minutes
            holder.execute("SELECT pg_current_xact_id()")
            found = doctor(on=own_dsn, code=1)["oldest transaction"]
            assert (found["severity"], found["pid"]) == ("WARNING", holder.info.backend_pid)
            assert found["remedy"] == f"SELECT pg_terminate_backend({found['pid']})"
            assert conn.execute(found["remedy"].encode()).fetchone() == (True,)
            assert doctor(on=own_dsn)["oldest transaction"]["severity"] == "FINE"
