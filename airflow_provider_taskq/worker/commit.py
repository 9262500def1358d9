"""The committing transaction of a batch: those who take part, the decisions, and what follows them. All or nothing."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import cast

from airflow_provider_taskq.queue import Decision, Insertion, Junction, NewTask, Owner, Result, Task, TaskQueue
from airflow_provider_taskq.queue.errors import is_session_timeout, is_transient
from airflow_provider_taskq.worker.batches import Batch, CommitHook, FollowUp
from airflow_provider_taskq.worker.handlers import name_of

log = logging.getLogger(__name__)

TRIES = 5  # of a participant that fails for a reason that may pass
LONGEST = 60.0  # seconds for which it is tried at most, if that is more tries

AbandonedHooks = Mapping[int, BaseException]
NO_ABANDONED_HOOKS: AbandonedHooks = {}


class CommitHookInterrupted(Exception):
    """A participant failed for a reason that may pass, such as a deadlock or a statement_timeout. See `cause`."""

    def __init__(self, participation: CommitHook, cause: BaseException) -> None:
        super().__init__(f"{name_of(participation.call)}: {type(cause).__name__}: {cause}")
        self.participation = participation
        self.cause = cause


class HookInterruptions:
    """Counts how often participants of one batch were interrupted, and gives up those that always are.

    A participant is given up after `TRIES` tries, and not before `seconds` have passed since the first: a server may
    be slow for a while. `given_up` holds the last error of each, by the id of its participation.
    """

    def __init__(self, seconds: float) -> None:
        self.given_up: dict[int, BaseException] = {}
        self._seconds = min(seconds, LONGEST)
        self._counts: dict[int, int] = {}
        self._first: dict[int, float] = {}

    def note(self, interrupted: CommitHookInterrupted) -> None:
        """Notes one more, and logs it."""
        key = id(interrupted.participation)
        first = self._first.setdefault(key, time.monotonic())
        self._counts[key] = self._counts.get(key, 0) + 1
        if self._counts[key] >= TRIES and time.monotonic() - first >= self._seconds:
            self.given_up[key] = interrupted.cause
        outcome = "its tasks fail" if key in self.given_up else "the commit is retried"
        log.warning("participant interrupted: %s; try=%d; %s", interrupted, self._counts[key], outcome)


def commit_batch(
    queue: TaskQueue, owner: Owner, batch: Batch, decisions: Mapping[Task, Decision]
) -> Mapping[Task, Decision]:
    """Commits the decisions on a batch in one transaction, and returns them as they stand after all took part.

    In order: the participants, the decisions, pushes that follow continued tasks, junctions that do. After the commit,
    and only then, topics with new tasks are woken and `after_commit` is called. Needs a connection without an open
    transaction. Raises what `complete`, `push` and `junction` raise, and the error of a participant that may pass
    (a deadlock, a timeout of the server); nothing is changed then.
    """
    try:
        return try_commit_batch(queue, owner, batch, decisions)
    except CommitHookInterrupted as interrupted:
        raise interrupted.cause from None


def try_commit_batch(
    queue: TaskQueue,
    owner: Owner,
    batch: Batch,
    decisions: Mapping[Task, Decision],
    given_up: AbandonedHooks = NO_ABANDONED_HOOKS,
    handler_statements: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Mapping[Task, Decision]:
    """The same as `commit_batch`; ParticipantInterrupted for a participant that may succeed at another try.

    Participants in `given_up` (see Interruptions) are not called: their tasks fail with that error. Each participant
    runs within `handler_statements()`, which may allow its statements more time than the queue's own calls.
    """
    with queue.conn.transaction():
        stands = dict(decisions)
        for participant in batch.participants:
            with handler_statements():
                run_commit_hook(queue, participant, stands, given_up)
        queue.complete(owner, cast("Mapping[Task | int, Decision | Result]", stands))
        topics = push_follow_ups(queue, batch, stands)
    after_commit(queue, batch, topics)
    return stands


def has_company(batch: Batch) -> bool:
    """Whether a batch commits more than its decisions."""
    return bool(batch.participants or batch.follow_ups or batch.releases or batch.afterwards)


def after_commit(queue: TaskQueue, batch: Batch, topics: Iterable[str] = ()) -> None:
    """Does what comes after a commit; what goes wrong here changes nothing, and is told to the log."""
    for topic in topics:
        _quietly(f"the waking of topic {topic!r}", lambda topic=topic: queue.notify(topic))  # type: ignore[misc]
    for call in batch.afterwards:
        _quietly(name_of(call), call)


def run_commit_hook(
    queue: TaskQueue, part: CommitHook, stands: dict[Task, Decision], given_up: AbandonedHooks = NO_ABANDONED_HOOKS
) -> None:
    """Lets one participant do and say its part; where it fails, what it did is undone and its tasks are FAILED.

    ParticipantInterrupted where it failed for a reason that may pass, unless it is in `given_up`.
    """
    seen = {task: decision for task, decision in stands.items() if part.task in (None, task)}
    if not seen:
        return
    if (reason := given_up.get(id(part))) is not None:
        said: Mapping[Task, Decision] | None = dict.fromkeys(seen, Decision(Result.FAILURE, error=reason))
    else:
        said = _called(queue, part, seen)
    for task, decision in (said or {}).items():
        stands[task] = stands[task].merge(decision)


def _called(queue: TaskQueue, part: CommitHook, seen: dict[Task, Decision]) -> Mapping[Task, Decision] | None:
    """What a participant says, FAILURE where it fails."""
    try:
        with queue.conn.transaction():
            said = part.call(queue, dict(seen))
            _check(part, said, seen)
    except Exception as error:
        if isinstance(error, part.success_on) and not queue.conn.closed:
            return None
        if is_transient(error) or is_session_timeout(error):
            raise CommitHookInterrupted(part, error) from error
        if queue.conn.closed:
            raise
        return dict.fromkeys(seen, Decision(Result.FAILURE, error=error))
    return said


def _check(part: CommitHook, said: Mapping[Task, Decision] | None, seen: Mapping[Task, Decision]) -> None:
    """Refuses a participant that leaves some tasks open, or decides on those of others."""
    if said is None:
        return
    name = name_of(part.call)
    if missing := [task.sequence for task in seen if task not in said]:
        raise LookupError(f"{name} made no decision on sequence {', '.join(map(str, missing[:10]))}")
    if foreign := [task.sequence for task in said if task not in seen]:
        raise LookupError(
            f"{name} decided on sequence {', '.join(map(str, foreign[:10]))}, which it was not asked about"
        )


def push_follow_ups(queue: TaskQueue, batch: Batch, stands: Mapping[Task, Decision]) -> list[str]:
    """Pushes and then releases what follows continued tasks; returns the topics that got something."""
    topics: dict[str, None] = {}
    for topic, insertion, tasks in _joined(each for each in batch.follow_ups if _continued(each.task, stands)):
        queue.push(topic, tasks, insertion)
        topics[topic] = None
    groups: dict[tuple[str, Junction], dict[tuple[str, ...], None]] = {}
    for release in batch.releases:
        if _continued(release.task, stands):
            groups.setdefault((release.topic, release.junction), {}).update(dict.fromkeys(release.groups))
    for (topic, junction), given in groups.items():
        if queue.junction(topic, given, junction):
            topics[topic] = None
    return list(topics)


def _continued(task: Task, stands: Mapping[Task, Decision]) -> bool:
    """Whether what follows a task is to come."""
    return task in stands and bool(stands[task].continued)


def _joined(pushes: Iterable[FollowUp]) -> list[tuple[str, Insertion, list[NewTask]]]:
    """Pushes in their order, neighbours of one topic and insertion as one."""
    joined: list[tuple[str, Insertion, list[NewTask]]] = []
    for each in pushes:
        if not joined or joined[-1][:2] != (each.topic, each.insertion):
            joined.append((each.topic, each.insertion, []))
        joined[-1][2].extend(each.tasks)
    return joined


def _quietly(what: str, call: Callable[[], None]) -> None:
    """Calls what comes too late to change anything."""
    try:
        call()
    except Exception:
        log.exception("After a commit, %s failed; what was committed stands", what)
