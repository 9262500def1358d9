"""The scheduler: keeps the next ticks of several schedules installed, in one program or in many."""

import logging
import threading
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest

from airflow_provider_taskq.queue import (
    InvalidArgument,
    NewTask,
    RecurringTask,
    Result,
    Schedule,
    TaskQueue,
    TaskQueueError,
    ticks_every,
)
from airflow_provider_taskq.queue.recurring import CatchUp
from airflow_provider_taskq.worker.scheduler import Scheduler
from tests.queue.conftest import until

pytestmark = pytest.mark.promise("Any number of schedulers store one task for each moment")

SECOND, HOUR, DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)
FIRST = datetime(2000, 1, 1, tzinfo=UTC)
FAR = datetime(2100, 1, 1, tzinfo=UTC)
HOURS = [time(hour) for hour in range(24)]
NOON_AND_EVENING = [time(12), time(18)]


def installed(queue: TaskQueue) -> list[str]:
    """The prefixes and times of the ticks, in order."""
    return sorted("/".join(info.identifier.split("/")[::2]) for info in queue.page("work"))


def times(*hours: int) -> list[datetime]:
    """Hours of a day in the year 2100."""
    return [FAR + HOUR * hour for hour in hours]


def far(*hours: int, version: int = 0) -> RecurringTask:
    """A schedule of the user, with these ticks."""
    return RecurringTask(Schedule(("far", version), lambda _now, _ahead: times(*hours)), {"year": 2100})


def test_a_scheduler_installs_several_schedules(dsn: str, queue: TaskQueue) -> None:
    runs: list[datetime] = []
    again = threading.Event()

    def moving(now: datetime, _ahead: timedelta) -> list[datetime]:
        runs.append(now)
        if len(runs) > 2:
            again.set()
        return times(len(runs))

    ticker = Scheduler(dsn)
    ticker.add("work", "fixed", far(1, 2))
    ticker.add("work", "moving", RecurringTask(Schedule(("moving",), moving)), 0.02)
    with ticker:
        assert again.wait(120)
        until(lambda: len(installed(queue)) >= 5)  # the next installation succeeds
        assert installed(queue)[:2] == ["fixed/21000101T010000.000000Z", "fixed/21000101T020000.000000Z"]
        with pytest.raises(TaskQueueError, match="runs already"):
            ticker.start()
    assert runs[0].tzinfo is not None
    assert not ticker.is_running
    assert ticker.stop()


def test_a_program_may_install_while_its_scheduler_runs(
    dsn: str, queue: TaskQueue, caplog: pytest.LogCaptureFixture
) -> None:
    ticker = Scheduler(dsn)
    ticker.add("work", "p", far(1, 2), 0.001)
    with ticker:
        for _ in range(20):
            ticker.install()
    assert installed(queue) == ["p/21000101T010000.000000Z", "p/21000101T020000.000000Z"]
    assert caplog.text == ""


def payloads(queue: TaskQueue) -> list[object]:
    """The payloads of the waiting ticks, in order of their times."""
    return [info.payload for info in sorted(queue.page("work", state="READY"), key=lambda info: info.available_at)]


def scheduler(dsn: str, schedule: Schedule, payload: Any, version: Any = None) -> Scheduler:
    """A scheduler of one schedule."""
    ticker = Scheduler(dsn)
    ticker.add("work", "p", RecurringTask(schedule, payload, version, ahead=2 * HOUR))
    return ticker


@pytest.mark.parametrize(
    "schedule",
    [Schedule.every(HOUR), Schedule.daily(NOON_AND_EVENING, "Europe/Oslo"), Schedule.cron("0 12,18 * * *", "UTC")],
    ids=["every", "daily", "cron"],
)
@pytest.mark.parametrize(
    ("old", "new", "stored"),
    [
        ({"kind": "old"}, {"kind": "new"}, {"kind": "new"}),
        (None, [1], [1]),
        (NewTask("x", {"n": 1}, priority=1), NewTask("x", {"n": 1}, priority=2, ttl=SECOND), {"n": 1}),
    ],
    ids=["json", "none", "task"],
)
def test_a_scheduler_replaces_the_waiting_ticks_of_a_changed_payload(
    dsn: str, queue: TaskQueue, schedule: Schedule, old: Any, new: Any, stored: object
) -> None:
    count = scheduler(dsn, schedule, old).install()
    before = [info.sequence for info in queue.page("work")]
    assert scheduler(dsn, schedule, old).install() == 0
    assert scheduler(dsn, schedule, new).install() == count
    assert payloads(queue) == [stored] * count
    assert not set(before) & {info.sequence for info in queue.page("work")}
    assert scheduler(dsn, schedule, new).install() == 0


def test_another_version_of_a_function_replaces_the_waiting_ticks(dsn: str, queue: TaskQueue) -> None:
    hourly = Schedule.every(HOUR)
    scheduler(dsn, hourly, lambda _moment: "old", 1).install()
    assert scheduler(dsn, hourly, lambda _moment: "new", 1).install() == 0
    assert scheduler(dsn, hourly, lambda _moment: "new", 2).install() == 2
    assert payloads(queue) == ["new", "new"]
    for version, hour in ((1, 1), (1, 2), (2, 3)):
        ticker = Scheduler(dsn)
        ticker.add("work", "p", far(hour, version=version))
        ticker.install()
    assert installed(queue) == ["p/21000101T030000.000000Z"]


@pytest.mark.promise("Ticks that were missed while no program installed any are installed by a policy")
@pytest.mark.parametrize(
    ("catch_up", "missed"), [("none", []), ("last", [0]), ("all", [3, 2, 1, 0])], ids=["none", "last", "all"]
)
@pytest.mark.parametrize("kind", [0, 1, 2], ids=["every", "daily", "cron"])
def test_ticks_that_were_missed_while_no_scheduler_ran_are_installed_by_the_policy(
    dsn: str, queue: TaskQueue, kind: int, catch_up: CatchUp, missed: list[int]
) -> None:
    """The last tick has ended, four hours and more ago."""
    ticker, hour = Scheduler(dsn), queue.now().replace(minute=0, second=0, microsecond=0)
    schedule = [Schedule.every(HOUR), Schedule.daily(HOURS, "UTC"), Schedule.cron("0 * * * *", "UTC")][kind]
    hash_ = RecurringTask(schedule).config_hash(queue.json_encoder())
    queue.install_ticks("work", "p", hash_, [(hour - 4 * HOUR, None)])
    queue.install_ticks("work", "p", hash_, [(hour - 5 * HOUR, None)])
    assert queue.last_tick("work", "p", hash_) == hour - 4 * HOUR
    owner = queue.register("worker")
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 2), Result.SUCCESS))
    ticker.add("work", "p", RecurringTask(schedule, ahead=HOUR, catch_up=catch_up))
    assert ticker.install() == len(missed) + 1
    due = sorted(info.available_at for info in queue.page("work", state="READY"))
    assert due == [*(hour - HOUR * n for n in missed), hour + HOUR]
    assert ticker.install() == 0


@pytest.mark.promise("Ticks that were missed while no program installed any are installed by a policy")
def test_the_last_missed_tick_is_found_although_there_are_more_than_one_call_makes(queue: TaskQueue) -> None:
    task = RecurringTask(Schedule.every(1), ahead=1, catch_up="last")
    queue.install_ticks("work", "p", task.config_hash(queue.json_encoder()), [(FIRST, None)])
    assert task.install(queue, "work", "p").added == 2
    with pytest.raises(InvalidArgument, match="catch_up must be none, last or all, not 'first'"):
        RecurringTask(Schedule.every(1), catch_up="first")  # type: ignore[arg-type]
    sparse = RecurringTask(Schedule.cron("0 0 29 2 *", "UTC"), catch_up="last")
    queue.install_ticks("work", "leap", sparse.config_hash(queue.json_encoder()), [(FIRST, None)])
    assert [moment.day for moment in sparse.install(queue, "work", "leap").moments] == [29, 29]


def test_ticks_are_installed_every_quarter_of_ahead_and_at_least_every_hour(dsn: str) -> None:
    ticker = Scheduler(dsn)
    for ahead in (DAY, HOUR, SECOND):
        ticker.add("work", "p", RecurringTask(Schedule.cron("* * * * *", "UTC"), ahead=ahead))
    ticker.add("work", "p", RecurringTask(Schedule.every(HOUR)), SECOND)
    assert [each.interval for each in ticker.schedules] == [HOUR, HOUR / 4, SECOND, SECOND]


def test_a_schedule_that_fails_is_logged_without_payload_and_the_others_continue(
    dsn: str, queue: TaskQueue, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[int] = []

    def failing(_now: datetime, _ahead: timedelta) -> list[datetime]:
        runs.append(1)
        if len(runs) < 3:
            raise OSError("no calendar")
        return times(9)

    ticker = Scheduler(dsn)
    ticker.add("work", "broken", RecurringTask(Schedule(("broken",), failing), {"secret": "payload"}), 0.01)
    ticker.add("work", "fine", far(0))
    with caplog.at_level(logging.WARNING), ticker:
        until(lambda: len(installed(queue)) == 2)
    assert caplog.text.count("ticks not installed: topic=work prefix=broken error=OSError") == 2
    assert "secret" not in caplog.text


def test_an_installation_fails_if_it_takes_longer_than_its_interval(
    dsn: str, queue: TaskQueue, caplog: pytest.LogCaptureFixture
) -> None:
    ticker = Scheduler(dsn)
    ticker.add("work", "p", far(1), SECOND)
    with queue.conn.transaction():
        queue.install_ticks(
            "work", "p", "other", [(moment, None) for moment in times(2)]
        )  # locks the prefix, so other installations wait
        with caplog.at_level(logging.WARNING), ticker:
            until(lambda: "QueryCanceled" in caplog.text)
    assert installed(queue) == ["p/21000101T020000.000000Z"]


def test_periodic_daily_and_cron_ticks_come_with_their_payloads(dsn: str, queue: TaskQueue) -> None:
    ticker = Scheduler(dsn)
    daily_times, half_hours = Schedule.daily(NOON_AND_EVENING, "Europe/Oslo"), Schedule.cron("*/30 * * * *", "UTC")
    ticker.add("work", "hourly", RecurringTask(Schedule.every(HOUR), {"report": 1}, ahead=2 * HOUR))
    ticker.add("work", "daily", RecurringTask(daily_times, lambda moment: moment.isoformat()))
    ticker.add("work", "cron", RecurringTask(half_hours, NewTask("any", {"by": "cron"}, priority=7), ahead=HOUR))
    ticker.install()
    infos = queue.page("work")
    hourly = [info for info in infos if info.identifier.startswith("hourly/")]
    assert [info.available_at for info in hourly] == ticks_every(HOUR, hourly[0].created, 2)
    assert [info.payload for info in hourly] == [{"report": 1}] * 2
    assert {info.priority for info in infos if info.identifier.startswith("cron/")} == {7}
    daily = [info for info in infos if info.identifier.startswith("daily/")]
    assert [datetime.fromisoformat(str(info.payload)) for info in daily] == [info.available_at for info in daily]


def test_a_blank_prefix_a_zero_interval_and_invalid_hours_raise(dsn: str) -> None:
    ticker = Scheduler(dsn)
    for prefix, interval in ((" ", HOUR), ("p", timedelta(0)), ("p", -HOUR)):
        with pytest.raises(InvalidArgument):
            ticker.add("work", prefix, far(1), interval)
    with pytest.raises(InvalidArgument):
        Schedule.every(timedelta(0))
    with pytest.raises(InvalidArgument):
        Schedule.daily([], "UTC")
    with pytest.raises(InvalidArgument, match="time zone"):
        Schedule.daily([time(9), time(12, tzinfo=UTC)], "UTC")
    assert ticker.schedules == []
