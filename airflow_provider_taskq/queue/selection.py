"""Actions of an operator with their audit lines, for the command line and the page alike.

A `Selection` names tasks by sequence, by a filter up to a bound, or by their state. An `Action` changes the tasks of a
selection. `AuditedQueue` has the actions on topics and owners. Each action writes its audit line in the transaction of
the change. The caller commits.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta

import psycopg

from airflow_provider_taskq.queue.client import TaskQueue
from airflow_provider_taskq.queue.models import Insertion, NewTask, Owner, Pushed, Result, Revival, State, Task
from airflow_provider_taskq.queue.reports import TaskFilter

MAX_TASKS = 10_000  # that a filter selects for one action
ROWS_PER_QUERY = 200_000
NAMED_IN_AUDIT = 20

WAITING = (State.READY,)
ENDED = (State.EXPIRED, State.FAILED, State.SUSPENDED, State.FILTERED, State.SUCCEEDED)
# The most frequent states come first: once they fill the selection, the search skips the others.
PURGED_BY_DEFAULT = (
    *(State.SUCCEEDED, State.FAILED, State.SUSPENDED),
    *(State.FILTERED, State.RECREATED, State.REDUNDANT),
)
PURGEABLE = (State.READY, State.EXPIRED, *PURGED_BY_DEFAULT)
# After these, workers may have something to poll: the caller notifies the topic, after its commit.
WAKING_ACTIONS = frozenset({"push", "resume", "retry", "run_now"})


@dataclass(frozen=True, slots=True)
class Selection:
    """Tasks of one topic.

    :param sequences: the tasks; None for all tasks in `states`, which is then one state.
    :param count: the number of tasks at the time of the selection.
    :param description: the selection in words, for the audit line.
    :param states: the states of tasks that a filter found. Empty for tasks that are named by sequence.
    :param more: whether further tasks match the filter.
    """

    topic: str
    sequences: Sequence[int] | None
    count: int
    description: str
    states: Sequence[State] = ()
    more: bool = False


def select_sequences(topic: str, sequences: Iterable[int]) -> Selection:
    """Select tasks by sequence."""
    named = sorted(set(sequences))
    shown = ", ".join(map(str, named[:NAMED_IN_AUDIT])) + (", ..." if len(named) > NAMED_IN_AUDIT else "")
    return Selection(topic, named, len(named), f"sequences {shown}")


def select_state(queue: TaskQueue, topic: str, state: State) -> Selection:
    """Select all tasks of a state, without a bound."""
    return Selection(topic, None, queue.count_tasks(topic, state=state), f"state {state.name}", (state,))


def select_filter(
    queue: TaskQueue,
    topic: str,
    given: TaskFilter,
    states: Sequence[State],
    *,
    limit: int | None = None,
    timeout: timedelta | None = None,
) -> Selection:
    """Select the tasks with the lowest sequences that match a filter, state by state. Lock nothing.

    :param limit: the most tasks to select; MAX_TASKS by default.
    :raises TimeoutError: if the search takes longer than `timeout`.
    """
    limit = limit or MAX_TASKS
    deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
    found: list[int] = []
    for state in states:
        after: int | None = None
        while len(found) <= limit:
            page, after = queue.find_tasks(
                topic,
                replace(given, state=state),
                after=after,
                newest=False,
                size=limit + 1 - len(found),
                budget=ROWS_PER_QUERY,
            )
            found += page
            if after is None:
                break
            if deadline is not None and len(found) <= limit and time.monotonic() > deadline:
                raise TimeoutError("the search for matching tasks takes too long: narrow it by state, since or until")
    what = describe_filter(given) or f"states {', '.join(state.name for state in states)}"
    return Selection(topic, found[:limit], min(len(found), limit), what, states, len(found) > limit)


def describe_filter(given: TaskFilter) -> str:
    """Format a filter as text, such as `state FAILED, error group TimeoutError`."""
    values = {item.name: getattr(given, item.name) for item in fields(given)}
    words = {"state": None if given.state is None else given.state.name}
    words |= {name: moment.isoformat() for name in ("since", "until") if (moment := values[name]) is not None}
    parts = {name: words.get(name) or value for name, value in values.items() if value is not None}
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in parts.items())


@dataclass(frozen=True, slots=True)
class ActionResult:
    """The outcome of an action, or of its preview.

    :param count: the number of tasks that the action changed, or would change.
    :param revived: for a retry, the sequence of each task and the sequence under which it goes on.
    """

    count: int
    revived: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Action:
    """A change of selected tasks.

    :param name: the name of the action in the audit log.
    :param states: the states of tasks that the action applies to.
    :param change: the call of the queue that changes the tasks of a selection; a retry returns its pairs of sequences.
    :param detail: what the audit line says after the selection, such as `by RESET`.
    """

    name: str
    states: Sequence[State]
    change: Callable[[TaskQueue, Selection], int | Mapping[int, int]]
    detail: str = ""

    def preview(self, queue: TaskQueue, selection: Selection) -> ActionResult:
        """Count the tasks that `apply` would change.

        If the tasks are named by sequence, this method changes them, so that an invalid task raises the same error as
        in `apply`. Roll back afterwards.
        """
        return ActionResult(selection.count) if selection.states else self._change(queue, selection)

    def apply(self, queue: TaskQueue, selection: Selection) -> ActionResult:
        """Change the tasks and write the audit line.

        If a filter found the tasks, `apply` changes only those that are still in a state of the selection, and skips
        those that another session has locked.
        """
        if selection.states and selection.sequences is not None:
            held = queue.lock_tasks(selection.topic, selection.sequences, selection.states)
            selection = replace(selection, sequences=held)
        result = self._change(queue, selection)
        what = ", ".join(filter(None, (selection.description, self.detail)))
        queue.record_action(self.name, selection.topic, what, result.count)
        return result

    def _change(self, queue: TaskQueue, selection: Selection) -> ActionResult:
        if selection.sequences is not None and not selection.sequences:
            return ActionResult(0)
        changed = self.change(queue, selection)
        return ActionResult(changed) if isinstance(changed, int) else ActionResult(len(changed), changed)


def retry(revival: Revival = Revival.RESET) -> Action:
    """Return the action that starts ended tasks again: the tasks themselves, or copies of them."""

    def change(queue: TaskQueue, tasks: Selection) -> Mapping[int, int]:
        return queue.revive(tasks.topic, _whole_state(tasks), revival, sequences=tasks.sequences)

    return Action("retry", ENDED, change, f"by {revival.name}")


def reassign(result: Result) -> Action:
    """Return the action that gives ended tasks another result."""

    def change(queue: TaskQueue, tasks: Selection) -> int:
        return queue.reassign(tasks.topic, result, sequences=tasks.sequences, state=_whole_state(tasks))

    return Action("reassign", ENDED, change, f"to {result.name}")


def run_now() -> Action:
    """Return the action that makes waiting tasks due now."""

    def change(queue: TaskQueue, tasks: Selection) -> int:
        return queue.change_waiting(tasks.topic, tasks.sequences or (), due="now")

    return Action("run_now", WAITING, change)


def set_priority(priority: int) -> Action:
    """Return the action that changes the priority of waiting tasks."""

    def change(queue: TaskQueue, tasks: Selection) -> int:
        return queue.change_waiting(tasks.topic, tasks.sequences or (), priority=priority)

    return Action("set_priority", WAITING, change, f"to {priority}")


def cancel() -> Action:
    """Return the action that ends waiting tasks as FILTERED."""
    return Action("cancel", WAITING, lambda queue, tasks: queue.cancel(tasks.topic, tasks.sequences or ()))


def purge() -> Action:
    """Return the action that removes tasks that no owner holds."""
    return Action("purge", PURGEABLE, lambda queue, tasks: queue.purge(tasks.topic, sequences=tasks.sequences or ()))


def _whole_state(tasks: Selection) -> State | None:
    return tasks.states[0] if tasks.sequences is None else None


@dataclass(frozen=True, slots=True)
class AuditedQueue:
    """Actions on topics and owners, each with its audit line.

    :param audit_required: whether an action fails if the role may not write its audit line. A producer may not.
    """

    queue: TaskQueue
    audit_required: bool = True

    def push(self, topic: str, tasks: Iterable[NewTask], insertion: Insertion, detail: str = "") -> list[Task]:
        """Push tasks. The audit line names a single task, and ends with `detail`."""
        pushed = self.queue.push(topic, tasks, insertion)
        what = f"by {insertion.name}"
        if len(pushed) == 1:
            what = f"{pushed[0].identifier} {what}, sequence {pushed[0].sequence}"
        self.record("push", topic, what + detail, len(pushed))
        return pushed

    def push_stream(self, topic: str, tasks: Iterable[NewTask], insertion: Insertion) -> Pushed:
        """Push any number of tasks in bounded memory."""
        pushed = self.queue.push_stream(topic, tasks, insertion)
        self.record("push", topic, f"by {insertion.name}", pushed.count)
        return pushed

    def set_paused(self, topic: str, *, paused: bool) -> bool:
        """Pause or resume a topic. Return False if it was paused or resumed already."""
        changed = self.queue.pause_topic(topic) if paused else self.queue.resume_topic(topic)
        self.record("pause" if paused else "resume", topic, "the topic", int(changed))
        return changed

    def release(self, owner: Owner) -> int:
        """End the lease of an owner. Return the number of tasks that become READY."""
        count = self.queue.release(owner)
        self.record("release", None, f"owner {owner.name}", count)
        return count

    def expire(self, grace: timedelta) -> int:
        """Take back the tasks of leases that lapsed more than `grace` ago. Write no audit line if there are none."""
        count = self.queue.expire(grace)
        if count:
            self.record("expire", None, f"leases that lapsed more than {grace.total_seconds():g} s ago", count)
        return count

    def record(self, action: str, topic: str | None, what: str, count: int) -> None:
        """Write an audit line."""
        if self.audit_required:
            self.queue.record_action(action, topic, what, count)
            return
        try:
            with self.queue.conn.transaction():
                self.queue.record_action(action, topic, what, count)
        except psycopg.errors.InsufficientPrivilege:
            pass
