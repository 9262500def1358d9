"""Makes recurring tasks ahead of their time, from a DAG."""

from collections.abc import Callable, Sequence
from datetime import datetime, time, timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_taskq.operators.base import TaskQOperator
from airflow_provider_taskq.operators.rendered import Span, now, span
from airflow_provider_taskq.queue import Json, NewTask, config_hash, ticks_cron, ticks_daily, ticks_every

if TYPE_CHECKING:
    from airflow.sdk import Context

ONE_DAY = timedelta(days=1)


class TaskQTicksOperator(TaskQOperator):
    """Installs the ticks of a schedule: tasks that are due at their nominal time, made ahead, one for each time.

    Any number of DAGs and runs may install the same ticks: what exists is left as it is. A changed schedule replaces
    the ticks of the old one that still wait. Run it more often than `ahead`: then a missed run delays no task.

    Exactly one of `every`, `daily` and `cron` says when. Where a clock is put forward, the times that it skips give no
    tick; where it is put back, the hour that comes twice gives its ticks once.

    Returns `{"topic", "prefix", "config_hash", "installed", "last"}`: the number of new ticks, and the last moment.

    :param topic: the topic's name (templated).
    :param prefix: the first part of the ticks' identifiers, `prefix/config_hash/time` (templated).
    :param every: a period, a timedelta or seconds, aligned to its boundary in UTC (templated).
    :param daily: times of day, such as `["06:00", "18:30"]` (templated).
    :param cron: a cron expression of five fields, or @hourly and the like (templated).
    :param zone: the time zone of `daily` and `cron` (templated).
    :param ahead: how far to make ticks ahead, a timedelta or seconds (templated); at least the next one is made.
    :param payload: what each tick carries, or a function of its moment that gives that or a NewTask. Not a template; a
        changed payload is a changed schedule, which of a function nobody can tell.
    :param create_topic: whether to create the topic, with the default policy, if there is none.
    :param taskq_conn_id: the Airflow connection (templated).
    """

    template_fields: Sequence[str] = (
        *("topic", "prefix", "every", "daily", "cron"),
        *("zone", "ahead", "taskq_conn_id"),
    )

    def __init__(
        self,
        *,
        topic: str,
        prefix: str,
        every: Span | None = None,
        daily: Sequence[str | time] | None = None,
        cron: str | None = None,
        zone: str = "UTC",
        ahead: Span = ONE_DAY,
        payload: Json | Callable[[datetime], NewTask | Json] = None,
        create_topic: bool = False,
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
        self.create_topic = create_topic
        if sum(schedule is not None for schedule in (every, daily, cron)) != 1:
            raise ValueError("give exactly one of every, daily and cron")

    def execute(self, context: "Context") -> dict[str, Any]:  # noqa: ARG002  Airflow's signature
        """Installs, and says how many."""
        with self.hook.transaction() as queue:
            if self.create_topic:
                queue.create_topic(self.topic)
            moments, configuration = self._schedule(now(queue.conn))
            ticks = [(moment, self._task(moment)) for moment in moments]
            installed = queue.install_ticks(self.topic, self.prefix, configuration, ticks)
        self.log.info(
            "Installed %d ticks of %s in topic %s, up to %s.", installed, self.prefix, self.topic, moments[-1]
        )
        return {
            "topic": self.topic,
            "prefix": self.prefix,
            "config_hash": configuration,
            "installed": installed,
            "last": moments[-1].isoformat(),
        }

    def _schedule(self, begin: datetime) -> tuple[list[datetime], str]:
        """The moments to come, and the hash of what they were worked out from."""
        ahead = span(self.ahead)
        carried = None if callable(self.payload) else self.payload
        if self.every is not None:
            period = span(self.every)
            count = max(1, ahead // period) if period > timedelta(0) else 1
            return ticks_every(period, begin, count), config_hash("every", period.total_seconds(), carried)
        if self.daily is not None:
            hours = [hour if isinstance(hour, time) else time.fromisoformat(hour) for hour in self.daily]
            times: list[Json] = [hour.isoformat() for hour in sorted(hours)]
            return ticks_daily(hours, self.zone, begin, ahead), config_hash("daily", times, self.zone, carried)
        assert self.cron is not None  # noqa: S101  for the type checker; one of the three is there
        return ticks_cron(self.cron, self.zone, begin, ahead), config_hash("cron", self.cron, self.zone, carried)

    def _task(self, moment: datetime) -> NewTask | Json:
        """What the tick of a moment carries."""
        return self.payload(moment) if callable(self.payload) else self.payload
