"""The event trigger: starts DAGs when a topic has tasks."""

import asyncio
import hashlib
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import AirflowException
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_taskq.queue import TaskQueueError
from airflow_provider_taskq.queue.arguments import DurationLike, to_integer, to_timedelta
from airflow_provider_taskq.queue.waits import Found, ReadyWait
from airflow_provider_taskq.triggers.watcher import get_watcher

if TYPE_CHECKING:
    from airflow.triggers.shared_stream import SharedStreamProducer

    from airflow_provider_taskq.triggers.event_debouncer import EventBatch

log = logging.getLogger(__name__)

CLAIM_UNSUPPORTED = (
    "TaskQEventTrigger(mode='claim') needs the shared streams of Airflow 3.3 or later: use mode='peek' here,"
    " and let the DAG claim with TaskQSensor(claim=n)."
)
_ARGUMENTS = (
    *("topic", "mode", "taskq_conn_id", "min_tasks", "cooldown", "condition"),
    *("batch_size", "order", "owner", "lease", "closing_events", "poll_interval"),
)
_DEFAULT_COOLDOWNS = {"peek": 60.0, "claim": 10.0}
_MIN_LEASE = 10.0
_RETRY_SECONDS = 30.0  # until a missing topic, schema or connection is checked again


class TaskQEventTrigger(BaseEventTrigger):
    """Fires asset events for a topic's tasks, in `Asset(watchers=[AssetWatcher(trigger=TaskQEventTrigger(...))])`.

    **peek** starts a DAG that claims tasks by itself. An event fires when `min_tasks` tasks become ready: at the first
    check, and again when as many tasks are ready that were not ready at the last event. While older tasks are ready,
    the event is repeated every `cooldown` seconds, so that tasks of a failed run are not forgotten. Airflow combines
    events into one run. So the DAG has to claim all tasks that it finds, and `max_active_runs=1` prevents a second run
    next to a slow one. The event is `{"topic", "ready"}`; `ready` may stop at `min_tasks`.

    **claim** (Airflow 3.3) turns tasks into events: the trigger claims tasks, fires an event for each task or batch,
    and completes the tasks as SUCCEEDED after Airflow has stored the event. A task whose event was not stored becomes
    READY again. If `rejection` returns a reason, the task ends as a FAILURE, which the policy may retry. Airflow
    stores at least one event for each task. It stores a second one if the triggerer dies, or loses its connection or
    lease, between the storage of the event and the completion of the task. Both events have the same `sequences`. An
    event is `{"topic", "claimed", "sequences", "identifiers"}`, with all sequences and the identifiers of the first 100
    tasks. A run for several events finds all of them in `triggering_asset_events`.

    Airflow starts a run with the first event of a burst. The other events wait for the run that the next event starts.
    So the trigger fires the event of the last task of a burst `cooldown` seconds after the previous one: its run gets
    all waiting events. That event waits too if the DAG has reached `max_active_runs` (default 16), or if the scheduler
    needs longer than `cooldown`. For a topic that may be quiet for a long time, `closing_events` adds events without
    tasks (`claimed` is 0) after each burst and each start.

    Triggers with equal arguments share one stream, and each event reaches all of their assets. So use one asset per
    topic, for any number of DAGs. Triggers with different arguments compete: each task goes to one of them.

    :param topic: the topic's name.
    :param mode: `peek` or `claim`.
    :param taskq_conn_id: the Airflow connection.
    :param min_tasks: peek: the number of ready tasks that fires the event.
    :param cooldown: peek: seconds after which the event is repeated (default 60); claim: seconds between the last two
        events of a burst, longer than a loop of the scheduler (default 10). With 0 every event fires immediately.
    :param closing_events: claim: the number of events without tasks after a burst and after a start; the first comes
        after `cooldown` seconds, and each pause doubles. For a DAG whose runs reach `max_active_runs`.
    :param condition: the condition under which tasks are counted or claimed.
    :param batch_size: claim: the most tasks in an event; the trigger does not wait for a full batch.
    :param order: claim: the order in which tasks are claimed.
    :param owner: claim: the owner's name; the default is computed from the arguments. Two Airflow installations that
        share a topic need different names.
    :param lease: claim: seconds after which other consumers can get the tasks of a dead triggerer.
    :param poll_interval: the shortest time between two checks, in seconds.
    """

    def __init__(
        self,
        *,
        topic: str,
        mode: Literal["peek", "claim"] = "peek",
        taskq_conn_id: str = "taskq_default",
        min_tasks: int = 1,
        cooldown: DurationLike | None = None,
        condition: str = "NONE",
        batch_size: int = 1,
        order: str = "FIRST_IN_FIRST_OUT",
        owner: str | None = None,
        lease: DurationLike = 60.0,
        closing_events: int = 0,
        poll_interval: DurationLike = 1.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.topic = topic
        self.mode = mode
        self.taskq_conn_id = taskq_conn_id
        self.min_tasks = min_tasks
        # In seconds, because Airflow stores the arguments of a trigger as JSON.
        default = _DEFAULT_COOLDOWNS.get(mode, 0.0)
        self.cooldown = to_timedelta(default if cooldown is None else cooldown, "cooldown").total_seconds()
        self.condition = str(condition)
        self.batch_size = batch_size
        self.order = str(order)
        self.owner = owner
        self.lease = to_timedelta(lease, "lease").total_seconds()
        self.closing_events = closing_events
        self.poll_interval = to_timedelta(poll_interval, "poll_interval").total_seconds()
        self._check_arguments()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the constructor arguments. Airflow identifies event triggers by them."""
        arguments = {name: getattr(self, name) for name in _ARGUMENTS}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    def rejection(self, batch: "EventBatch") -> str | None:  # noqa: ARG002  for a subclass
        """Return the reason to reject a batch, or None to fire its event. Subclasses override it; it must not block."""
        return None

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire events in mode peek. In mode claim, Airflow reads the shared stream instead of calling this."""
        if self.mode == "claim":
            raise AirflowException(CLAIM_UNSUPPORTED)
        arguments = (self.topic, self.min_tasks, self.condition)
        logged_error: str | None = None
        while True:
            try:
                wait = ReadyWait(*arguments, poll_interval=self.poll_interval)
                ready = await get_watcher(self.taskq_conn_id).wait_for(wait)
            except (AirflowException, TaskQueueError) as error:
                if str(error) != logged_error:
                    logged_error = str(error)
                    log.warning("Cannot check for events, will retry: topic=%s error=%s", self.topic, error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if logged_error is not None:
                logged_error = None
                log.info("Can check for events again: topic=%s", self.topic)
            since = time.monotonic()
            yield _event({"topic": self.topic, "ready": ready})
            await self._cool_down(NewTasksWait(*arguments, poll_interval=self.poll_interval, since=since))

    def shared_stream_key(self) -> Hashable | None:
        """Return all arguments in mode claim. Mode peek has no stream: its triggers share the watcher."""
        if self.mode == "peek":
            return None
        classpath, arguments = self.serialize()
        return classpath, tuple(sorted(arguments.items(), key=lambda item: item[0]))

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> "SharedStreamProducer":
        """Create the producer of the stream, which connects when Airflow opens it."""
        from airflow_provider_taskq.triggers.event_stream import EventStreamProducer

        return EventStreamProducer(cls(**kwargs), kwargs["owner"] or _default_owner(kwargs))

    async def filter_shared_stream(self, shared_stream: AsyncIterator["EventBatch"]) -> AsyncIterator[TriggerEvent]:
        """Fire the event of each batch, or reject the batch."""
        from airflow.triggers.shared_stream import reject_shared_stream_event

        async for batch in shared_stream:
            reason = self.rejection(batch) if batch.tasks else None
            if reason is None:
                yield _event(batch.event())
                batch.fired += 1  # reached only after Airflow has taken the event
            else:
                batch.rejections.append(reason)
                reject_shared_stream_event()

    async def _cool_down(self, wait: "NewTasksWait") -> None:
        try:
            async with asyncio.timeout(self.cooldown):
                await get_watcher(self.taskq_conn_id).wait_for(wait)
        except (TimeoutError, AirflowException, TaskQueueError):
            return  # the next check reports the error

    def _check_arguments(self) -> None:
        # When the DAG is parsed, so that an error does not first appear in the triggerer.
        if self.mode not in ("peek", "claim"):
            raise ValueError(f"invalid mode {self.mode!r}: expected 'peek' or 'claim'")
        for name, least in (("min_tasks", 1), ("batch_size", 1), ("closing_events", 0)):
            to_integer(getattr(self, name), name, least)
        if self.lease < _MIN_LEASE:
            raise ValueError(f"invalid lease of {self.lease:g} seconds: expected at least {_MIN_LEASE:g}")
        if self.mode == "claim" and not has_shared_streams():
            raise AirflowException(CLAIM_UNSUPPORTED)


@dataclass(frozen=True, slots=True)
class NewTasksWait(ReadyWait):
    """Waits until enough tasks are ready and none of them was ready before `since`, a time of `time.monotonic()`."""

    max_wait: float | None = math.inf  # not None, so that the watcher measures the age, which never ends the wait
    since: float = 0.0

    def outcome(self, found: Sequence[Found]) -> int | None:
        """Return how many tasks are ready, once all of them are new."""
        ready = ReadyWait.outcome(self, found)
        ((_, waited, checked_at),) = found
        # The server measures the age of the oldest ready task after the check began. So the task became ready no
        # earlier than the start of the check minus its age, and a slow answer makes no old task look new. A slow check
        # may make a new task look old. A faster check finds that task later, or the cooldown ends the wait.
        return ready if waited is not None and waited < checked_at - self.since else None


def has_shared_streams() -> bool:
    """Return whether this Airflow release has shared streams, which confirm that an event was stored."""
    return hasattr(BaseEventTrigger, "create_shared_stream_producer")


def _default_owner(kwargs: dict[str, Any]) -> str:
    """Return an owner name that is the same in every triggerer and after every restart."""
    digest = hashlib.sha256(json.dumps(kwargs, sort_keys=True).encode()).hexdigest()
    return f"airflow-event/{kwargs['topic']}/{digest[:12]}"


def _event(payload: dict[str, Any]) -> TriggerEvent:
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]
