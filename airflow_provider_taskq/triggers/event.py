"""Schedules DAGs on a topic."""

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

from airflow_provider_taskq.queue import TaskQueueError, UnknownTopic
from airflow_provider_taskq.triggers.waits import ReadyWait, Seen
from airflow_provider_taskq.triggers.watcher import watcher

if TYPE_CHECKING:
    from airflow.triggers.shared_stream import SharedStreamProducer

    from airflow_provider_taskq.triggers.async_owner import Claim

log = logging.getLogger(__name__)

CLAIM_NEEDS = (
    "TaskQEventTrigger(mode='claim') needs the shared streams of Airflow 3.3 or later: use mode='peek' here,"
    " and let the DAG claim with TaskQSensor(claim=n)."
)
_COOLDOWNS = {"peek": 60.0, "claim": 10.0}
_SHORTEST_LEASE = 10.0
_RETRY = 30.0  # seconds until a topic, schema or connection that is not there is looked for again


@dataclass(frozen=True, slots=True)
class AnewWait(ReadyWait):
    """Waits until enough tasks are ready, and none of them has been since a moment of `time.monotonic()`.

    How long the oldest has waited is measured on the server, some time after the look began. So counted back from that
    beginning, it became ready then at the earliest: no late answer makes a new task of an old one. A new one that came
    within such a time after the moment is told by the next look that is quicker, or else when the cooldown is over.
    """

    max_wait: float | None = math.inf  # it never opens by that, but so the watcher tells how long the oldest has waited
    since: float = 0.0

    def outcome(self, seen: Sequence[Seen]) -> int | None:
        """How many are ready, once they are others."""
        ready = ReadyWait.outcome(self, seen)
        waited, looked = seen[0].waited, seen[0].looked
        return ready if waited is not None and waited < looked - self.since else None


class TaskQEventTrigger(BaseEventTrigger):
    """Makes asset events of a topic's tasks, for `Asset(watchers=[AssetWatcher(trigger=TaskQEventTrigger(...))])`.

    **peek** wakes a DAG, which then takes tasks itself. It only looks. An event is fired when `min_tasks` tasks become
    ready: at the first look, and again when so many are ready of which none was at the last event. As long as one of
    those is left, the event is repeated every `cooldown` seconds, so that a run that failed, or tasks that it left
    behind, are not forgotten. Nothing ready, no event. Airflow makes one run of events that have gathered: such a DAG
    takes all it finds, and `max_active_runs=1` keeps a slow run from being doubled. The event is `{"topic", "ready"}`,
    counted no further than the most that anybody waits for.

    **claim** (Airflow 3.3) makes the event the work itself: it takes tasks, fires an event for each, or for each batch,
    and ends them as SUCCEEDED once Airflow has stored the event. A task whose event was not stored becomes READY
    again. One that `refusal` refuses is ended as a FAILURE with its reason, which a retry policy of the topic may try
    again. No task is lost: each has its event stored at least once. An event comes twice where the triggerer ended, or
    its database connection or lease was lost, after the event was stored and before the task was ended; `sequences`
    tells. The event is `{"topic", "claimed", "sequences", "identifiers"}`: all sequences, and the identifiers of the
    first 100 tasks. A run that Airflow made of several events finds all of them in `triggering_asset_events`.

    Airflow starts a run with the first event of a burst, and leaves those that come before that run is made to the run
    that the next event starts. So the event of the last task of a burst is fired `cooldown` seconds after the one
    before: it starts a run that gets all that were left. While a DAG is at its limit of active runs
    (`max_active_runs`, 16 unless set), or the scheduler takes longer than `cooldown`, Airflow leaves that one behind,
    too, until another event comes. For a topic where none may come for long, `closing_events` repeats events without
    tasks (`claimed` is 0) after each burst and each start.

    Triggers with equal arguments are one stream: each task's event reaches the assets of all of them. So use one
    asset a topic, for any number of DAGs. Triggers with different arguments are competitors: each task goes to one.

    :param topic: the topic's name.
    :param mode: `peek` or `claim`.
    :param taskq_conn_id: the Airflow connection.
    :param min_tasks: peek: how many ready tasks are enough.
    :param cooldown: peek: seconds after which the event is repeated, as long as so many are ready (60 unless given);
        claim: seconds between the last event of a burst and the one before (10 unless given). Longer than the scheduler
        needs for a round. With 0 all events are fired at once.
    :param closing_events: claim: how many events without tasks follow a burst and a start, the first after `cooldown`
        seconds, each later one after twice as long; for a DAG whose runs reach `max_active_runs`.
    :param condition: under which condition tasks are counted or taken.
    :param batch_size: claim: how many tasks an event has at the most; it does not wait until there are as many.
    :param order: claim: in which order tasks are taken.
    :param owner: claim: under which name; made of the arguments unless given. Two Airflows that share a topic need two.
    :param lease: claim: seconds after which the tasks of a triggerer that is gone can be taken by others.
    :param poll_interval: seconds between two looks at the shortest.
    """

    def __init__(
        self,
        *,
        topic: str,
        mode: Literal["peek", "claim"] = "peek",
        taskq_conn_id: str = "taskq_default",
        min_tasks: int = 1,
        cooldown: float | None = None,
        condition: str = "NONE",
        batch_size: int = 1,
        order: str = "FIRST_IN_FIRST_OUT",
        owner: str | None = None,
        lease: float = 60.0,
        closing_events: int = 0,
        poll_interval: float = 1.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.topic = topic
        self.mode = mode
        self.taskq_conn_id = taskq_conn_id
        self.min_tasks = min_tasks
        self.cooldown = cooldown if cooldown is not None else _COOLDOWNS.get(mode, 0.0)
        self.condition = condition
        self.batch_size = batch_size
        self.order = order
        self.owner = owner
        self.lease = lease
        self.closing_events = closing_events
        self.poll_interval = poll_interval
        self._check()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments, by which Airflow tells triggers apart: names and numbers only."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "topic": self.topic,
            "mode": self.mode,
            "taskq_conn_id": self.taskq_conn_id,
            "min_tasks": self.min_tasks,
            "cooldown": self.cooldown,
            "condition": str(self.condition),
            "batch_size": self.batch_size,
            "order": str(self.order),
            "owner": self.owner,
            "lease": self.lease,
            "closing_events": self.closing_events,
            "poll_interval": self.poll_interval,
        }

    def refusal(self, claim: "Claim") -> str | None:  # noqa: ARG002  for a subclass to look at
        """Why a claim is refused, or None to fire its event: for a subclass to say. It must not block."""
        return None

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Peeks, for ever. A claim never comes here: Airflow feeds it from the shared stream."""
        if self.mode == "claim":
            raise AirflowException(CLAIM_NEEDS)
        what: dict[str, Any] = {"topic": self.topic, "min_tasks": self.min_tasks, "condition": self.condition}
        what["poll_interval"] = self.poll_interval
        trouble: str | None = None
        while True:
            try:
                ready = await watcher(self.taskq_conn_id).until(ReadyWait(**what))
            except (AirflowException, TaskQueueError) as error:
                # A topic that was dropped is one that does not exist at the next look: that is no change.
                text = UnknownTopic.__name__ if isinstance(error, UnknownTopic) else str(error)
                if text != trouble:
                    trouble = text
                    log.warning("Topic %r cannot be looked at, tried again until it can: %s", self.topic, error)
                await asyncio.sleep(_RETRY)
                continue
            if trouble is not None:
                trouble = None
                log.info("Topic %r can be looked at again.", self.topic)
            since = time.monotonic()
            yield _event({"topic": self.topic, "ready": ready})
            await self._anew_or_cooled(AnewWait(**what, since=since))

    def shared_stream_key(self) -> Hashable | None:
        """What makes claims one stream: all their arguments. Peeks need none, they share the watcher."""
        if self.mode == "peek":
            return None
        classpath, arguments = self.serialize()
        return classpath, tuple(sorted(arguments.items(), key=lambda item: item[0]))

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> "SharedStreamProducer":
        """The side of the queue of a stream of claims; it connects when it is opened."""
        from airflow_provider_taskq.triggers.event_stream import Claiming, TaskClaims

        return TaskClaims(
            Claiming(
                conn_id=kwargs["taskq_conn_id"],
                topic=kwargs["topic"],
                owner=kwargs["owner"] or _owner_of(kwargs),
                lease=kwargs["lease"],
                cooldown=kwargs["cooldown"],
                closing_events=kwargs["closing_events"],
                batch_size=kwargs["batch_size"],
                order=kwargs["order"],
                condition=kwargs["condition"],
                poll_interval=kwargs["poll_interval"],
            )
        )

    async def filter_shared_stream(self, shared_stream: AsyncIterator["Claim"]) -> AsyncIterator[TriggerEvent]:
        """Makes an event of each claim, or refuses it."""
        from airflow.triggers.shared_stream import reject_shared_stream_event

        async for claim in shared_stream:
            reason = self.refusal(claim) if claim.sequences else None
            if reason is None:
                yield _event(claim.event())
                claim.fired += 1  # reached only after Airflow has taken the event
            else:
                claim.refusals.append(reason)
                reject_shared_stream_event()

    async def _anew_or_cooled(self, wait: AnewWait) -> None:
        """Waits until other tasks are ready, or the event is to be repeated."""
        try:
            async with asyncio.timeout(self.cooldown):
                await watcher(self.taskq_conn_id).until(wait)
        except (TimeoutError, AirflowException, TaskQueueError):
            return  # what is wrong, the next look says

    def _check(self) -> None:
        """Refuses, where the DAG is written, what could only fail in the triggerer."""
        if self.mode not in ("peek", "claim"):
            raise ValueError(f"mode {self.mode!r} is neither 'peek' nor 'claim'")
        if self.min_tasks < 1 or self.batch_size < 1:
            raise ValueError("min_tasks and batch_size are 1 at least")
        if self.cooldown < 0 or self.closing_events < 0:
            raise ValueError("cooldown and closing_events are 0 at least")
        if self.lease < _SHORTEST_LEASE:
            raise ValueError(f"a lease of {self.lease:g} seconds is too short to be kept: {_SHORTEST_LEASE:g} at least")
        if self.mode == "claim" and not has_shared_streams():
            raise AirflowException(CLAIM_NEEDS)


def has_shared_streams() -> bool:
    """Whether this Airflow tells a trigger that its event is stored."""
    return hasattr(BaseEventTrigger, "create_shared_stream_producer")


def _owner_of(kwargs: dict[str, Any]) -> str:
    """The owner of a stream: the same in every triggerer and after every restart."""
    digest = hashlib.sha256(json.dumps(kwargs, sort_keys=True).encode()).hexdigest()
    return f"airflow-event/{kwargs['topic']}/{digest[:12]}"


def _event(facts: dict[str, Any]) -> TriggerEvent:
    """An event of these facts."""
    return TriggerEvent(facts)  # type: ignore[no-untyped-call]
