"""Schedules in words, described from the times that the generators of ticks return."""

from datetime import UTC, datetime, time, timedelta

import pytest

from airflow_provider_taskq.queue import NewTask, TaskQueue, config_hash, ticks_cron, ticks_daily, ticks_every
from airflow_provider_taskq.queue.schedules import describe_schedule

pytestmark = pytest.mark.promise("Each view shows what it names, and leads to the reason of a stuck task")

NOW = datetime(2026, 11, 18, 10, 7, tzinfo=UTC)  # a Wednesday
WEEKS = timedelta(days=20)


@pytest.mark.parametrize(
    ("moments", "words"),
    [
        (ticks_every(timedelta(seconds=90), NOW, 5), "every 90 seconds"),
        (ticks_every(timedelta(minutes=15), NOW, 5), "every 15 minutes"),
        (ticks_every(timedelta(hours=1), NOW, 5), "every hour"),
        (ticks_every(timedelta(days=2), NOW, 5), "every 2 days at 00:00"),
        (ticks_daily([time(6)], "UTC", NOW, WEEKS), "every day at 06:00"),
        (ticks_daily([time(9), time(17, 30)], "UTC", NOW, WEEKS), "every day at 09:00 and 17:30"),
        (ticks_cron("0 6 * * 1", "UTC", NOW, WEEKS), "every Monday at 06:00"),
        (ticks_cron("0 6 * * 1-5", "UTC", NOW, WEEKS), "Monday to Friday at 06:00"),
        (ticks_cron("0 9,17 * * 1,4", "UTC", NOW, WEEKS), "Monday and Thursday at 09:00 and 17:00"),
        (ticks_cron("0 0 1 * *", "UTC", NOW, timedelta(days=100)), "day 1 of the month at 00:00"),
        (ticks_cron("0 0 1,9 * *", "UTC", NOW, timedelta(days=60)), "irregular, 4 times in 39 days"),
        (ticks_every(timedelta(hours=1), NOW), "one time is known"),
    ],
)
def test_a_schedule_is_described_in_words(moments: list[datetime], words: str) -> None:
    assert describe_schedule(moments) == words


def test_a_schedule_is_described_from_waiting_and_ended_ticks(queue: TaskQueue) -> None:
    moments = ticks_every(timedelta(hours=1), NOW - timedelta(hours=3), 5)
    payload = NewTask("", {"n": 1})
    queue.install_ticks("work", "hourly", config_hash("v1"), [(moment, payload) for moment in moments])
    owner = queue.register("worker")
    queue.complete(owner, {})
    (line,), capped = queue.browse_ticks("work")
    assert (line.prefix, line.schedule, capped) == ("hourly", "every hour", False)
