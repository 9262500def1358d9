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
    print(f"{TaskQueue(conn).expire()} tasks of owners whose lease had lapsed")


def _maintain(conn: psycopg.Connection[Any]) -> None:
    while True:
        done = TaskQueue(conn).maintain()
        conn.commit()
        print(f"{done.expired} tasks of owners whose lease had lapsed, {done.purged} tasks removed")
        if not done.more:
            return


def _health(conn: psycopg.Connection[Any]) -> None:
    for finding in TaskQueue(conn).health():
        print(f"{finding.severity.name:<8} {finding.subject}: {finding.detail}")


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
        print(f"{error}", file=sys.stderr)
        return 1
    except psycopg.Error as error:
        print(f"{first_line(error)}", file=sys.stderr)  # the other lines may have a row with a payload
        return 1
    print(f"{action}: done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
