"""taskq install, upgrade, verify, uninstall, sql: the schema itself.

The script of `taskq sql` writes the same record of migrations as `install`: `verify` accepts it, and a later `install`
continues from it.
"""

from typing import Any

import click
import psycopg
from psycopg.rows import tuple_row

from airflow_provider_taskq import __version__
from airflow_provider_taskq.cli._options import dry_run_option, yes_option
from airflow_provider_taskq.cli._output import ask, plural
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.queue import SchemaMismatch, TaskQueue, schema
from airflow_provider_taskq.queue import install as install_schema
from airflow_provider_taskq.queue import uninstall as uninstall_schema
from airflow_provider_taskq.queue import verify as verify_schema
from airflow_provider_taskq.queue.schema import NO_VIEWS, SchemaStep, functions, has_views, migrations, views

_HEAD = """\
-- airflow-provider-taskq {version}: the schema taskq, {what}.
-- Run it as the role that is to own the schema: psql -v ON_ERROR_STOP=1 -f this-file
-- It is one transaction, and fails in a database at another step than the one it starts from.
"""
_SCHEMAS = """\
CREATE SCHEMA IF NOT EXISTS taskq;
CREATE SCHEMA IF NOT EXISTS taskq_internal;
"""
_GUARD = """\
{lock};
DO $guard$ DECLARE
    steps int[] := '{{}}';
BEGIN
    IF to_regclass('taskq.migrations') IS NOT NULL THEN
        steps := ARRAY(SELECT number FROM taskq.migrations WHERE number > 0 ORDER BY number);
    END IF;
    IF steps <> ARRAY[{steps}]::int[] THEN
        RAISE EXCEPTION 'this script is for a schema taskq with steps {{{steps}}}, and here are %', steps
            USING HINT = 'taskq verify prints the last step, taskq sql --from N the script for it';
    END IF;
END $guard$;
"""


def ddl_script(begin: int = 0, *, bare: bool = False, with_views: bool = True) -> str:
    """Return the script that upgrades a schema to this release.

    :param begin: the number of the last installed step; 0 for a database without the schema.
    :param bare: leaves out BEGIN and COMMIT.
    :param with_views: whether the script creates the readable views.
    """
    before = ", ".join(str(step.number) for step in migrations() if step.number <= begin)
    missing = [step for step in migrations() if step.number > begin]
    wanted = views() if with_views else NO_VIEWS
    what = f"from step {begin} to {migrations()[-1].number}" if begin else "whole"
    parts = [
        _HEAD.format(version=__version__, what=what),
        "" if bare else "BEGIN;\n",
        "" if begin else _SCHEMAS,
        _GUARD.format(lock=schema.LOCK, steps=before),
        *map(_script, missing),
        schema._DROP_FUNCTIONS + ";\n" if begin else "",  # noqa: SLF001  the statement of install
        "SET LOCAL check_function_bodies = off;\n",
        _script(functions()),
        _script(wanted),
        schema.finishing(wanted) + ";\n",
        "SET LOCAL check_function_bodies = on;\n",
        "" if bare else "COMMIT;\n",
    ]
    return "\n".join(filter(None, parts))


def _script(step: SchemaStep) -> str:
    return f"-- {step.name}\n{step.script}\n"


@click.command(help="Create the schema taskq, or upgrade it. Safe to repeat, and to run from several places at once.")
@click.option(
    "--views/--no-views",
    default=None,
    help="With or without the readable views tasks and topic_summaries. By default an "
    "existing schema stays as it is, and a new one has them.",
)
@dry_run_option
@click.pass_obj
def install(session: Session, views: bool | None, dry_run: bool) -> None:
    with session.connection() as conn:
        _bring_up_to_date(session, conn, views=views, dry_run=dry_run)


@click.command(help="Upgrade the schema taskq to this release. An error if there is none.")
@dry_run_option
@click.pass_obj
def upgrade(session: Session, dry_run: bool) -> None:
    with session.connection() as conn:
        if installed_step(conn) is None:
            raise SchemaMismatch("the schema taskq is missing in this database: run taskq install")
        _bring_up_to_date(session, conn, dry_run=dry_run)


@click.command(help="Check whether the schema matches this release: exit code 0, or 1 and the command to run.")
@click.pass_obj
def verify(session: Session) -> None:
    with session.connection() as conn:
        conn.read_only = True
        step = installed_step(conn)
        wrong = _mismatch(conn)
    document = {"matches": wrong is None, "installed": step, "release": migrations()[-1].number, "reason": wrong}
    session.answer(document, f"The schema taskq matches this release (step {step})." if wrong is None else wrong)
    if wrong is not None:
        raise click.exceptions.Exit(1)


@click.command(help="Drop the schema taskq with every topic and task in it.")
@dry_run_option
@yes_option
@click.pass_obj
def uninstall(session: Session, dry_run: bool, yes: bool) -> None:
    with session.connection() as conn:
        contents = _contents(conn)
        if contents is None:
            session.answer({"dropped": False, "dry_run": dry_run}, "This database has no schema taskq.")
            return
        conn.rollback()  # hold no lock during the prompt
        if not dry_run:
            ask(f"This drops the schema taskq of database {conn.info.dbname!r} with {contents}.", yes=yes)
            uninstall_schema(conn)
    sentence = (
        f"Would drop the schema taskq with {contents}." if dry_run else f"Dropped the schema taskq with {contents}."
    )
    session.answer({"dropped": not dry_run, "dry_run": dry_run, "contents": contents}, sentence)


@click.command(help="Print the DDL of this release, for the schema's owner to run with psql -1 -f or another tool.")
@click.option(
    "--from", "from_", type=click.IntRange(min=0), help="Only the upgrade of a schema at this step; see verify."
)
@click.option("--bare", is_flag=True, help="Without BEGIN and COMMIT, for a tool that opens the transaction.")
@click.option("--no-views", is_flag=True, help="Without the readable views; repeat it for each upgrade.")
@click.pass_obj
def sql(session: Session, from_: int | None, bare: bool, no_views: bool) -> None:
    newest = migrations()[-1].number
    if from_ is not None and not 1 <= from_ <= newest:
        raise click.UsageError(f"--from is the step of an installed schema, 1 to {newest}; omit it for a new schema")
    script = ddl_script(from_ or 0, bare=bare, with_views=not no_views)
    if session.json:
        session.answer({"from": from_ or 0, "to": newest, "sql": script})
    else:
        click.echo(script, nl=False)


def installed_step(conn: psycopg.Connection[Any]) -> int | None:
    """Return the number of the last migration in the database; None without a schema.

    The function reads the record of migrations, because a partial schema may lack every function.
    """
    with conn.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute("SELECT to_regclass('taskq.migrations') IS NOT NULL").fetchone()
        if row is None or not row[0]:
            return None
        row = cursor.execute("SELECT coalesce(max(number), 0) FROM taskq.migrations").fetchone()
    return None if row is None else int(row[0])


def _bring_up_to_date(
    session: Session, conn: psycopg.Connection[Any], *, views: bool | None = None, dry_run: bool
) -> None:
    """Install or upgrade the schema and list the steps. Roll back a dry run."""
    before, wrong = installed_step(conn), _mismatch(conn)
    changes = wrong is not None or views not in (None, has_views(conn))
    if changes:
        install_schema(conn, views=views)
    after, with_views = installed_step(conn), has_views(conn)
    if dry_run:
        conn.rollback()
    steps = [step.name for step in migrations() if before is None or step.number > before]
    made = [*steps, "functions and views" if with_views else "functions, no views"] if changes else []
    document = {"from": before, "to": after, "steps": steps, "functions": changes, "views": with_views}
    verbs = ("Would create", "Would upgrade") if dry_run else ("Created", "Upgraded")
    sentence = f"{verbs[before is not None]} the schema taskq: {', '.join(made)}."
    session.answer({**document, "dry_run": dry_run}, sentence if changes else "The schema taskq is up to date.")


def _mismatch(conn: psycopg.Connection[Any]) -> str | None:
    """Describe the mismatch between schema and release, with the command that corrects it.

    Return None if schema and release match.
    """
    try:
        verify_schema(conn)
    except SchemaMismatch as error:
        return str(error)
    return None


def _contents(conn: psycopg.Connection[Any]) -> str | None:
    """Describe the contents of the schema. Return None if there is no schema."""
    if installed_step(conn) is None:
        return None
    if _mismatch(conn) is not None:
        return "everything in it (it belongs to another release, so its tasks are not counted)"
    counts = TaskQueue(conn).count()
    tasks = sum(count.count for states in counts.values() for count in states.values())
    return f"{plural(len(counts), 'topic')} and {plural(tasks, 'task')}"
