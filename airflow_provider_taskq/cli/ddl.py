"""The DDL of the schema as one script, for a DBA who lets no tool touch it.

It leaves the same ledger behind as `install`, so that `verify` accepts it and a later `install` goes on from it.
"""

from airflow_provider_taskq import __version__
from airflow_provider_taskq.queue import schema
from airflow_provider_taskq.queue.schema import NO_VIEWS, Step, functions, migrations, views

_HEAD = """\
-- airflow-provider-taskq {version}: the schema taskq, {what}.
-- Run it as the role that is to own the schema: psql -v ON_ERROR_STOP=1 -f this-file
-- It is one transaction, and refuses a database that is not at the step it begins from.
"""
_LEDGER = """\
CREATE SCHEMA IF NOT EXISTS taskq;
CREATE TABLE IF NOT EXISTS taskq.migration (
    number int PRIMARY KEY, name text NOT NULL, checksum text NOT NULL,
    applied timestamptz NOT NULL DEFAULT clock_timestamp());
"""
_GUARD = """\
{lock};
DO $guard$ DECLARE
    steps int[] := ARRAY(SELECT number FROM taskq.migration WHERE number > 0 ORDER BY number);
BEGIN
    IF steps <> ARRAY[{steps}]::int[] THEN
        RAISE EXCEPTION 'this script is for a schema taskq with steps {{{steps}}}, and here are %', steps
            USING HINT = 'taskq verify tells the last step, taskq sql --from N prints the script for it';
    END IF;
END $guard$;
"""
_ENTRY = """\
INSERT INTO taskq.migration (number, name, checksum) VALUES ({number}, '{name}', '{checksum}')
ON CONFLICT (number) DO UPDATE SET name = excluded.name, checksum = excluded.checksum, applied = excluded.applied;
"""


def script(begin: int = 0, *, bare: bool = False, with_views: bool = True) -> str:
    """What brings a schema at step `begin` (0: none yet) to this release; `bare`: without BEGIN and COMMIT."""
    before = ", ".join(str(step.number) for step in migrations() if step.number <= begin)
    missing = [step for step in migrations() if step.number > begin]
    what = f"from step {begin} to {migrations()[-1].number}" if begin else "whole"
    parts = [
        _HEAD.format(version=__version__, what=what),
        "" if bare else "BEGIN;\n",
        "" if begin else ledger(),
        _GUARD.format(lock=schema.LOCK, steps=before),
        *map(entered, missing),
        schema._DROP_FUNCTIONS + ";\n" if begin else "",  # noqa: SLF001  what install runs, told nowhere else
        "SET LOCAL check_function_bodies = off;\n",
        entered(functions()),
        entered(views() if with_views else NO_VIEWS),
        "SELECT taskq.suit_planner(), taskq.close_schema();\n",
        "SET LOCAL check_function_bodies = on;\n",
        "" if bare else "COMMIT;\n",
    ]
    return "\n".join(filter(None, parts))


def ledger() -> str:
    """The schema, and its ledger."""
    return _LEDGER


def entered(step: Step) -> str:
    """A step, and its entry in the ledger."""
    heading = f"-- {step.name}\n"
    return f"{heading}{step.script}\n" + _ENTRY.format(number=step.number, name=step.name, checksum=step.checksum)
