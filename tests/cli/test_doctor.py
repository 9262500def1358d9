"""`taskq doctor`: each finding is provoked, and its remedy is carried out if a program can do that."""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq import __version__
from airflow_provider_taskq.cli._distributions import CORE, FULL
from airflow_provider_taskq.cli._installation import check_packages
from airflow_provider_taskq.queue import Owner, TaskQueue, connect, install, uninstall
from tests.cli.conftest import Run
from tests.internals import Release, block_verbs, make_upkeep_due, pretend_release
from tests.queue.conftest import lapse, pass_time
from tests.roles import logged_in

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
    """Creates a role with kinds of access to `own_dsn`, and returns the DSN with which it logs in."""
    with connect(own_dsn, autocommit=True) as conn, ExitStack() as roles:
        yield lambda *kinds, topics=None: roles.enter_context(logged_in(conn, own_dsn, *kinds, topics=topics))


def install_fake(monkeypatch: pytest.MonkeyPatch, folder: Path, *packages: tuple[str, str, str]) -> None:
    """Add the metadata of distributions to the path: name, version and requirement. They came from a package index."""
    for name, version, needs in packages:
        made = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        made.mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (made / "METADATA").write_text(metadata + (f"Requires-Dist: {needs}\n" if needs else ""))
    monkeypatch.syspath_prepend(str(folder))


def install_without_views(conn: psycopg.Connection) -> None:
    """Install the schema again, without the readable views."""
    uninstall(conn)
    install(conn, views=False)


class TestInstallation:
    def test_a_fresh_installation_is_fine_and_each_check_says_what_it_found(
        self, run: Run, doctor: Doctor, own_dsn: str
    ) -> None:
        found = doctor(on=own_dsn)
        # This machine's clock may be wrong.
        assert {finding["severity"] for subject, finding in found.items() if subject != "clock"} == {"FINE"}
        assert {"packages", "connection", "clock", "schema", "grants", "upkeep", "notifications"} <= set(found)
        assert __version__ in found["packages"]["detail"]
        assert "psycopg 3." in found["packages"]["detail"]
        assert found["connection"]["detail"].startswith("PostgreSQL ")
        assert "subjects are fine.\n" in run("doctor").stdout
        assert len(run("doctor", "--all").stdout.splitlines()) > len(found)

    @pytest.mark.parametrize(
        ("damage", "severity", "remedy", "detail"),
        [
            (uninstall, "CRITICAL", "taskq install", "schema"),
            (pretend_release, "CRITICAL", "taskq upgrade", "functions or views"),
            (lambda conn: conn.execute("DROP VIEW taskq.tasks CASCADE"), "CRITICAL", None, "taskq.tasks"),
            (lambda conn: conn.execute("DROP FUNCTION taskq.heartbeat"), "CRITICAL", None, "taskq.heartbeat"),
            (install_without_views, "NOTICE", "taskq install --views", "views"),
        ],
        ids=["no schema", "an older release", "a lost view", "a lost function", "no views"],
    )
    def test_a_schema_in_disorder_is_a_finding_and_its_remedy_mends_it(
        self,
        doctor: Doctor,
        carry_out: CarryOut,
        own_dsn: str,
        damage: Callable[[psycopg.Connection], object],
        severity: str,
        remedy: str | None,
        detail: str,
    ) -> None:
        with connect(own_dsn, autocommit=True) as conn:
            damage(conn)
        findings = doctor(on=own_dsn, code=1 if severity == "CRITICAL" else 0)
        found = findings["schema"]
        assert (found["severity"], found["remedy"]) == (severity, remedy or found["remedy"])
        assert detail in found["detail"]
        assert ("upkeep" in findings) == (severity == "NOTICE")
        carry_out(found)
        assert doctor()["schema"]["severity"] == "FINE"

    def test_row_level_security_of_a_table_for_staging_is_a_finding(self, doctor: Doctor, own_dsn: str) -> None:
        with connect(own_dsn, autocommit=True) as conn:
            conn.execute("ALTER TABLE taskq.staged_task ENABLE ROW LEVEL SECURITY")
            found = doctor(on=own_dsn, code=1)["row security"]
            assert "Spark cannot stage rows" in found["detail"]
            conn.execute(found["remedy"].encode())
        assert doctor()["row security"]["severity"] == "FINE"

    @pytest.mark.parametrize("release", ["newer", "newer functions", "other migration"])
    def test_a_schema_of_another_release_asks_for_another_package(
        self, doctor: Doctor, own_dsn: str, release: Release, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        with connect(own_dsn, autocommit=True) as conn:
            pretend_release(conn, release)
        install_fake(monkeypatch, tmp_path, (CORE, __version__, ""), (FULL, __version__, ""))
        found = doctor(on=own_dsn, code=1)["schema"]
        assert (found["severity"], found["remedy"]) == ("CRITICAL", f"pip install --upgrade {FULL}")

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
        assert (found["severity"], found["value"]) == ("WARNING", pytest.approx(300, abs=20))
        assert re.search(r"this machine is \d+\.\d s ahead of the server's", found["detail"])
        shifted = make_conninfo(own_dsn, options="-csearch_path=shifted,pg_catalog -cshift.by=-15s")
        found = doctor(on=shifted)["clock"]
        assert (found["severity"], found["value"]) == ("NOTICE", pytest.approx(15, abs=12))
        assert re.search(r"\d+\.\d s behind the server's", found["detail"])

    def test_a_check_that_ends_with_an_error_is_a_finding_and_no_traceback(self, doctor: Doctor, own_dsn: str) -> None:
        with connect(own_dsn) as conn:
            block_verbs(conn)
            found = doctor(on=make_conninfo(own_dsn, options="-clock_timeout=50"), code=1)
        assert found["checks"]["severity"] == "CRITICAL"
        assert "lock timeout" in found["checks"]["detail"]


class TestPackages:
    @pytest.mark.parametrize(
        ("packages", "detail", "remedy"),
        [
            (
                [(FULL, __version__, ""), (CORE, __version__, "")],
                "",
                f"pip uninstall -y {CORE} && pip install --force-reinstall --no-deps {FULL}=={__version__}",
            ),
            ([(FULL, "0.0.1", "")], f"0.0.1 is installed, but the imported package is {__version__}", "pip install"),
            ([(FULL, __version__, "psycopg[binary]>=99.1")], "", "pip install --upgrade 'psycopg[binary]>=99.1'"),
        ],
        ids=["both distributions", "another version than the imported package", "a psycopg that is too old"],
    )
    def test_packages_in_disorder_are_a_warning_with_the_command_that_mends_them(
        self,
        doctor: Doctor,
        dsn: str,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        packages: list[tuple[str, str, str]],
        detail: str,
        remedy: str,
    ) -> None:
        install_fake(monkeypatch, tmp_path, *packages)
        found = doctor(on=dsn, code=1)["packages"]
        assert found["severity"] == "WARNING"
        assert detail in found["detail"]
        assert found["remedy"].startswith(remedy)

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


class TestGrants:
    @pytest.mark.parametrize(
        ("kinds", "needs", "severity", "detail"),
        [
            ((), (), "CRITICAL", "may not use the schema taskq"),
            (("consumer",), (), "NOTICE", "may not call taskq.health"),
            (("reader",), ("producer", "reader"), "CRITICAL", "has no access as producer"),
            (("consumer", "revoked"), (), "WARNING", "lacks rights as consumer"),
        ],
        ids=["a stranger", "no reader", "a kind that is needed", "a lost function"],
    )
    def test_missing_rights_are_a_finding_and_the_grant_mends_it(
        self,
        doctor: Doctor,
        carry_out: CarryOut,
        make_role: MakeRole,
        own_dsn: str,
        monkeypatch: pytest.MonkeyPatch,
        kinds: tuple[str, ...],
        needs: tuple[str, ...],
        severity: str,
        detail: str,
    ) -> None:
        role = make_role(*(kind for kind in kinds if kind != "revoked"))
        if "revoked" in kinds:
            with connect(own_dsn, autocommit=True) as conn, connect(role) as its:
                user = sql.Identifier(its.info.user)
                conn.execute(sql.SQL("REVOKE EXECUTE ON FUNCTION taskq.heartbeat FROM {}").format(user))
        words = [word for kind in needs for word in ("--needs", kind)]
        findings = doctor(*words, on=role, code=0 if severity == "NOTICE" else 1)
        assert findings["grants"]["severity"] == severity
        assert detail in findings["grants"]["detail"]
        assert ("upkeep" in findings) == ("reader" in kinds), "only a reader may check the database"
        monkeypatch.setenv("TASKQ_DSN", own_dsn)
        carry_out(findings["grants"])
        after = doctor(*words, on=role)["grants"]
        assert (after["severity"], after["detail"] == findings["grants"]["detail"]) in {
            ("FINE", False),
            ("NOTICE", False),
        }

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

    def test_a_neglected_queue_is_a_finding_and_its_remedy_mends_it(
        self, doctor: Doctor, carry_out: CarryOut, queue: TaskQueue
    ) -> None:
        assert doctor()["upkeep"]["severity"] == "FINE"
        queue.push("work", ["a"])
        assert queue.poll("work", queue.register("owner"))  # the upkeep takes it back when the lease lapses
        make_upkeep_due(queue.conn, timedelta(hours=2))
        found = doctor(code=1)["upkeep"]
        assert found["detail"].startswith("no program has called taskq.maintain() for 2 h: the tasks of owners")
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
