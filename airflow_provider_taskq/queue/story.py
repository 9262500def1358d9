"""What became of a task, and of a topic's tasks lately."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_provider_taskq.queue.models import State


@dataclass(frozen=True, slots=True)
class Happening:
    """One event in the life of a task.

    `what`: pushed, failed (and is tried again), lapsed (its owner's lease), started anew, recreated, reassigned, held
    (now, since `happened`), ended. `state` is what it was before; of held and ended, what it is. `actor` is the person
    who did it, as the client said, `role` the database role that was connected, as the database says, `other` the
    sequence of the copy that was recreated or the state that was assigned. `error` is the end of a traceback,
    `error_summary` the line of it that says what went wrong.

    `waited` and `ran` are the queue time and the run time of the attempt that failed, lapsed or ended, or is held: from
    when the task was due (or due again, after a failure) to its poll, and from the poll to the end, or to now.
    """

    happened: datetime | None
    what: str
    state: State | None
    attempt: int
    holder: str | None
    actor: str | None
    role: str | None
    other: int | None
    error: str | None
    error_summary: str | None
    waited: timedelta | None
    ran: timedelta | None


@dataclass(frozen=True, slots=True)
class Ended:
    """How many tasks of a topic ended in a state within a span of time: span 0 is the last one, 1 that before.

    Where there is much history only a random share of it is read, `sampled`, and the count is an estimate.
    """

    topic: str
    span: int
    state: State
    count: int
    sampled: float
