"""All that tests know of the private schema of the queue: a rename inside the SQL touches this file alone.

Each function arranges what no public verb arranges, as a lapse of time or a damaged row, or reads what no verb tells.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import psycopg

from airflow_provider_taskq.queue import State

SECOND = timedelta(seconds=1)

# All tables but those whose rows are created with the schema: migrations and locks.
_TABLES = (
    "taskq_internal.live",
    "taskq_internal.ended",
    "taskq_internal.task",
    "taskq_internal.dependency",
    "taskq_internal.probe",
    "taskq_internal.front",
    "taskq_internal.identifier_front",
    "taskq_internal.topic",
    "taskq_internal.owner",
    "taskq.staged",
    "taskq_internal.stage",
    "taskq_internal.deferred_task",
    "taskq.staged_task",
    "taskq.staged_junction",
    "taskq_internal.stream",
    "taskq_internal.lock",
    "taskq_internal.progress",
    "taskq_internal.group_release",
    "taskq_internal.history",
    "taskq_internal.consumer_group",
    "taskq_internal.audit",
    "taskq_internal.worker",
    "taskq_internal.drain",
    "taskq_internal.retention_walk",
)
_EMPTY = ";".join(
    [
        *(f"DELETE FROM {table}" for table in _TABLES),
        "SELECT setval('taskq_internal.task_sequence', 1, false), setval('taskq_internal.fence', 1, false)",
        "UPDATE taskq_internal.upkeep SET due = DEFAULT, called = DEFAULT, ended = DEFAULT, topic_id = DEFAULT,"
        " unfinished_only = DEFAULT WHERE called IS NOT NULL",
        # health counts the time without upkeep from the installation on
        "UPDATE taskq_internal.migration SET applied = clock_timestamp()"
        " WHERE applied < clock_timestamp() - interval '1 minute'",
    ]
).encode()


def empty_queue(conn: psycopg.Connection) -> None:
    """Deletes all rows but those of the installation, starts sequences and fences at 1, and forgets all upkeep."""
    conn.execute(_EMPTY)


def lapse_lease(conn: psycopg.Connection, owner: str | None = None, ago: timedelta = SECOND) -> None:
    """Makes the lease of an owner, or of all owners, have lapsed the given time ago."""
    conn.execute(
        "UPDATE taskq_internal.owner SET lease_until = clock_timestamp() - %(ago)s::interval"
        " WHERE %(owner)s::text IS NULL OR name = %(owner)s",
        {"ago": ago, "owner": owner},
    )


def age_owner(conn: psycopg.Connection, by: timedelta, owner: str | None = None) -> None:
    """Moves the last sign of life of an owner, or of all owners, back in time."""
    conn.execute(
        "UPDATE taskq_internal.owner SET seen = seen - %(by)s::interval WHERE %(owner)s::text IS NULL OR name = %(owner)s",
        {"by": by, "owner": owner},
    )


_TIMES = {
    "task": ("created", "due"),
    "live": ("available_at", "due_again"),
    "ended": ("available_at", "completed", "polled"),
}
_FRONT_TIMES = {
    "probe": ("failed_at",),
    "front": ("available_at", "gap_low_at", "gap_high_at"),
    "identifier_front": ("available_at", "claimed_at"),
}


def age_tasks(conn: psycopg.Connection, by: timedelta, sequences: Sequence[int] | None = None) -> None:
    """Lets time pass for tasks, by moving their stored times back; without sequences, for all tasks and probes."""
    for table, columns in (_TIMES if sequences is not None else _TIMES | _FRONT_TIMES).items():
        moves = ", ".join(f"{column} = {column} - %(by)s::interval" for column in columns)
        if table == "live" and sequences is not None:
            moves += ", late = true"  # these tasks may stand before the front now
        chosen = "sequence = ANY (%(sequences)s)" if sequences is not None else "true"
        conn.execute(
            f"UPDATE taskq_internal.{table} SET {moves} WHERE {chosen}".encode(),
            {"by": by, "sequences": None if sequences is None else list(sequences)},
        )


def make_due(conn: psycopg.Connection, at: datetime | None = None, sequences: Sequence[int] | None = None) -> None:
    """Moves the due time of waiting tasks, retries and blocked ones too, to a moment: now, unless given."""
    conn.execute(
        "UPDATE taskq_internal.live SET late = true, available_at = coalesce(%(at)s, clock_timestamp())"
        " WHERE %(sequences)s::bigint[] IS NULL OR sequence = ANY (%(sequences)s)",
        {"at": at, "sequences": None if sequences is None else list(sequences)},
    )


def damage_payload(conn: psycopg.Connection, sequence: int, text: str) -> None:
    """Stores JSON that push refuses, as a dump of another database may bring it."""
    conn.execute("UPDATE taskq_internal.task SET payload = %s::json WHERE sequence = %s", (text, sequence))


def damage_output(conn: psycopg.Connection, sequence: int, text: str) -> None:
    """Stores JSON that complete refuses as the message of an ended task."""
    conn.execute("UPDATE taskq_internal.ended SET output = %s::json WHERE sequence = %s", (text, sequence))


def hold_tasks(conn: psycopg.Connection, *sequences: int) -> None:
    """Locks live tasks, or all of them, until the transaction ends, as a poll does that is about to claim them."""
    conn.execute(
        "SELECT FROM taskq_internal.live WHERE %(all)s OR sequence = ANY (%(sequences)s) FOR UPDATE",
        {"all": not sequences, "sequences": list(sequences)},
    )


def hold_turns(conn: psycopg.Connection) -> None:
    """Locks the turns of all identifiers until the transaction ends, as a poll by identifier does before it claims."""
    conn.execute("SELECT FROM taskq_internal.identifier_lock FOR UPDATE")


def end_as(conn: psycopg.Connection, sequence: int, state: State, descent: State | None = None) -> None:
    """Gives an ended task a state that no verb gives to a task alone, as RECREATED."""
    conn.execute(
        "UPDATE taskq_internal.ended SET state = %s, descent = %s WHERE sequence = %s",
        (int(state), None if descent is None else int(descent), sequence),
    )


def pretend_migration(conn: psycopg.Connection, number: int = 0, checksum: str = "of another release") -> None:
    """Makes a migration, and those before it, look like those of another release. 0 stands for all functions."""
    conn.execute("UPDATE taskq_internal.migration SET checksum = %s WHERE number = %s", (checksum, number))


def make_upkeep_due(conn: psycopg.Connection, called_ago: timedelta | None = None) -> None:
    """Makes the next call of `maintain` do its work, and the last call lie the given time ago."""
    conn.execute(
        "UPDATE taskq_internal.upkeep SET due = '-infinity', called = coalesce(clock_timestamp() - %s::interval, called)",
        (called_ago,),
    )


def set_next_sequence(conn: psycopg.Connection, sequence: int) -> None:
    """Makes the next pushed task have this sequence."""
    conn.execute("SELECT setval('taskq_internal.task_sequence', %s, false)", (sequence,))
