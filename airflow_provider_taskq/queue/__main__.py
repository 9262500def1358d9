"""`python -m airflow_provider_taskq.queue install|verify|uninstall|expire|maintain|health`: without Airflow."""

import argparse
import sys
from typing import Any

import psycopg

from airflow_provider_taskq.queue.client import TaskQueue
from airflow_provider_taskq.queue.connection import connect
from airflow_provider_taskq.queue.errors import TaskQueueError, first_line
from airflow_provider_taskq.queue.schema import install, uninstall, verify


def _expire(conn: psycopg.Connection[Any]) -> None:
    sys.stdout.write(f"{TaskQueue(conn).expire()} tasks of owners whose lease had lapsed\n")


def _maintain(conn: psycopg.Connection[Any]) -> None:
    while True:
        done = TaskQueue(conn).maintain()
        conn.commit()
        sys.stdout.write(f"{done.expired} tasks of owners whose lease had lapsed, {done.purged} tasks removed\n")
        if not done.more:
            return


def _health(conn: psycopg.Connection[Any]) -> None:
    for finding in TaskQueue(conn).health():
        sys.stdout.write(f"{finding.severity.name:<8} {finding.subject}: {finding.detail}\n")


_ACTIONS = {"verify": verify, "uninstall": uninstall, "expire": _expire, "maintain": _maintain, "health": _health}


def main() -> int:
    """Run the action of the first argument. If the action fails, print one sentence on stderr and return 1."""
    parser = argparse.ArgumentParser(
        prog="python -m airflow_provider_taskq.queue",
        description="The schema taskq, in the database that TASKQ_DSN, TASKQ_DSN_FILE or PGHOST names.",
    )
    parser.add_argument("action", choices=("install", *_ACTIONS))
    parser.add_argument(
        "--views", action=argparse.BooleanOptionalAction, help="for install: with or without the readable views"
    )
    given = parser.parse_args()
    action = given.action
    if given.views is not None and action != "install":
        parser.error("--views and --no-views go with install")
    try:
        with connect() as conn:
            if action == "install":
                install(conn, views=given.views)
            else:
                _ACTIONS[action](conn)
    except TaskQueueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except psycopg.Error as error:
        sys.stderr.write(f"{first_line(error)}\n")  # the other lines may have a row with a payload
        return 1
    sys.stdout.write(f"{action}: done\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
