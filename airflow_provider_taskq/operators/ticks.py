"""The operator that installs the ticks of a schedule."""

from collections.abc import Sequence
from datetime import time, timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_taskq.operators.base import TaskQBaseOperator
from airflow_provider_taskq.parameters import parse_duration
from airflow_provider_taskq.queue import Json
from airflow_provider_taskq.queue.arguments import DurationLike
from airflow_provider_taskq.queue.encoding import JsonDefault
from airflow_provider_taskq.queue.recurring import CatchUp, Payload, RecurringTask
from airflow_provider_taskq.queue.schedules import Schedule

if TYPE_CHECKING:
    from airflow.sdk import Context

ONE_DAY = timedelta(days=1)


class TaskQTicksOperator(TaskQBaseOperator):
    """Installs the ticks of a schedule: tasks that are pushed ahead, each due at its nominal time.

    Any number of DAGs and runs may install the same ticks, because the operator does not change a tick that exists. A
    changed schedule replaces the waiting ticks of the old one. Run the operator more often than `ahead`, so that a
    missed run delays no task.

    Give exactly one of `every`, `daily` and `cron`. An hour that a time change skips gives no tick. An hour that a time
    change repeats gives its ticks once.

    Returns `{"topic", "prefix", "config_hash", "installed", "last"}`; `installed` is the number of new ticks, and
    `last` the time of the last tick.

    :param topic: the topic's name (templated).
    :param prefix: the first part of the ticks' identifiers, `prefix/config_hash/time` (templated).
    :param every: a period, a timedelta or seconds, aligned to its boundary in UTC (templated).
    :param daily: times of day, such as `["06:00", "18:30"]` (templated).
    :param cron: a cron expression of five fields, or @hourly and the like (templated).
    :param zone: the time zone of `daily` and `cron` (templated).
    :param ahead: how far ahead to install ticks, a timedelta or seconds; installs at least the next one (templated).
    :param payload: the payload of each tick, a NewTask, or a function of the tick's time that returns one of them. Not
        templated. A changed payload is a changed schedule.
    :param version: change it with the code of a payload function, because the operator does not see such a change.
    :param catch_up: which ticks to install of those that were missed while no run installed any: `none`, the `last`
        one, or `all`.
    :param create_topic: whether to create a missing topic with the default policy.
    :param json_default: converts an object in a payload that JSON does not have, such as a datetime, as that of
        `json.dumps`; for example `str`.
    """

    template_fields: Sequence[str] = ("topic", "prefix", "every", "daily", "cron", "zone", "ahead", "taskq_conn_id")

    def __init__(
        self,
        *,
        topic: str,
        prefix: str,
        every: DurationLike | None = None,
        daily: Sequence[str | time] | None = None,
        cron: str | None = None,
        zone: str = "UTC",
        ahead: DurationLike = ONE_DAY,
        payload: Payload = None,
        version: Json = None,
        catch_up: CatchUp = "none",
        create_topic: bool = False,
        json_default: JsonDefault | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.prefix = prefix
        self.every = every
        self.daily = daily
        self.cron = cron
        self.zone = zone
        self.ahead = ahead
        self.payload = payload
        self.version = version
        self.catch_up: CatchUp = catch_up
        self.create_topic = create_topic
        self.json_default = json_default
        if sum(schedule is not None for schedule in (every, daily, cron)) != 1:
            raise ValueError("give exactly one of every, daily and cron")

    def execute(self, context: "Context") -> dict[str, Any]:  # noqa: ARG002  Airflow's signature
        """Install the ticks, and return the number of new ones."""
        with self.hook.transaction() as queue:
            if self.create_topic:
                queue.create_topic(self.topic)
            ahead = parse_duration("ahead", self.ahead)
            task = RecurringTask(self._schedule(), self.payload, self.version, ahead, self.catch_up)
            installed = task.install(queue, self.topic, self.prefix)
        named = (self.topic, self.prefix, installed.added, installed.moments[-1])
        self.log.info("Installed ticks: topic=%s prefix=%s count=%d last=%s", *named)
        return {
            "topic": self.topic,
            "prefix": self.prefix,
            "config_hash": installed.config_hash,
            "installed": installed.added,
            "last": installed.moments[-1].isoformat(),
        }

    def _schedule(self) -> Schedule:
        if self.every is not None:
            return Schedule.every(parse_duration("every", self.every))
        if self.daily is not None:
            hours = [hour if isinstance(hour, time) else time.fromisoformat(hour) for hour in self.daily]
            return Schedule.daily(hours, self.zone)
        assert self.cron is not None  # noqa: S101  for the type checker; one of the three is there
        return Schedule.cron(self.cron, self.zone)
