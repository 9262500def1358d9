"""Recurring tasks: a schedule with its payload, and the ticks that an installation makes of both, wherever it runs."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from airflow_provider_taskq.queue.arguments import DurationLike, to_timedelta
from airflow_provider_taskq.queue.client import TaskQueue
from airflow_provider_taskq.queue.encoding import JsonEncoder, decode_json
from airflow_provider_taskq.queue.errors import InvalidArgument
from airflow_provider_taskq.queue.models import Json, NewTask
from airflow_provider_taskq.queue.schedules import ONE_DAY, ONE_MINUTE, Schedule

Payload: TypeAlias = NewTask | Json | Callable[[datetime], NewTask | Json]
CatchUp: TypeAlias = Literal["none", "last", "all"]
CATCH_UPS = get_args(CatchUp)


class Installed(NamedTuple):
    """What an installation of ticks did: it added `added` ticks, of these nominal times."""

    config_hash: str
    added: int
    moments: list[datetime]


@dataclass(frozen=True, slots=True)
class RecurringTask:
    """A schedule with its payload. Equal ones have the same hash, and so the same ticks, wherever they are installed.

    :param payload: JSON, a NewTask, or a function of the tick's moment that returns one of them.
    :param version: change it with the code of a payload function, because the queue does not see such a change.
    :param ahead: installs the ticks within this time, and at least the next one.
    :param catch_up: which ticks to install of those that were missed while no program installed any: `none`, the `last`
        one, or `all` (at most 100,000).
    """

    schedule: Schedule
    payload: Payload = None
    version: Json = None
    ahead: DurationLike = ONE_DAY
    catch_up: CatchUp = "none"

    def __post_init__(self) -> None:
        if self.catch_up not in CATCH_UPS:
            raise InvalidArgument(f"catch_up must be none, last or all, not {self.catch_up!r:.50}")

    def install(self, queue: TaskQueue, topic: str, prefix: str) -> Installed:
        """Add the missing ticks under a prefix, and remove those of another schedule, payload or version."""
        hash_, now = self.config_hash(queue.json_encoder()), queue.now()
        moments = self.schedule.times(now, to_timedelta(self.ahead, "ahead"))
        if self.catch_up != "none":
            moments = [*self._missed(queue.last_tick(topic, prefix, hash_), now), *moments]
        ticks = [(moment, self.payload(moment) if callable(self.payload) else self.payload) for moment in moments]
        return Installed(hash_, queue.install_ticks(topic, prefix, hash_, ticks), moments)

    def config_hash(self, encode: JsonEncoder) -> str:
        """Return the hash of the schedule and the payload, or the version of a payload function.

        Raises InvalidArgument for a payload that cannot be stored.
        """
        if callable(self.payload):
            return self.schedule.hash(self.version)
        try:
            payload = _described(self.payload, encode)
        except ValueError as error:
            raise InvalidArgument(f"the payload of the ticks {error}") from None
        return self.schedule.hash(payload if self.version is None else [payload, self.version])

    def _missed(self, last: datetime | None, now: datetime) -> list[datetime]:
        """Return the times after the last tick, up to now, that `catch_up` names."""
        if last is None or last >= now:
            return []
        span = now - last if self.catch_up == "all" else ONE_MINUTE
        while True:  # for the last one, in growing spans: there may be more than a schedule makes in one call
            begin = max(last, now - span)
            missed = [moment for moment in self.schedule.times(begin, now - begin) if moment <= now]
            if missed or begin == last:
                return missed if self.catch_up == "all" else missed[-1:]
            span *= 2


def _described(payload: NewTask | Json, encode: JsonEncoder) -> Json:
    """Return a payload as it will be read, or the fields of a NewTask."""
    if not isinstance(payload, NewTask):
        return decode_json(encode(payload) or "null")
    found = {each.name: _as_json(getattr(payload, each.name)) for each in fields(payload)}
    return {**found, "payload": decode_json(encode(payload.payload) or "null")}


def _as_json(value: Any) -> Json:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return [list(pair) for pair in value] if isinstance(value, tuple) else value  # a tuple: the pairs of depends_on
