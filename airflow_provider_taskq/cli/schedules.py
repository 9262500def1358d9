"""When recurring tasks come, as the command line says it: hashed as TaskQTicksOperator does, so that both mean one."""

from collections.abc import Sequence
from datetime import datetime, time, timedelta

import click

from airflow_provider_taskq.queue import Json, config_hash, ticks_cron, ticks_daily, ticks_every

MOST = 1_000_000  # ticks that one call makes


def moments_and_hash(
    every: timedelta | None,
    daily: Sequence[str],
    cron: str | None,
    zone: str,
    *,
    begin: datetime,
    ahead: timedelta,
    payload: Json,
) -> tuple[list[datetime], str]:
    """The moments to come, and the hash of what they were worked out from."""
    if (every is not None) + bool(daily) + (cron is not None) != 1:
        raise click.UsageError("say when by exactly one of --every, --daily and --cron")
    if every is not None:
        count = max(1, ahead // every) if every else 1
        if count > MOST:
            raise click.UsageError(f"--every and --ahead make {count:,} ticks, more than {MOST:,}")
        return ticks_every(every, begin, count), config_hash("every", every.total_seconds(), payload)
    if cron is not None:
        return ticks_cron(cron, zone, begin, ahead), config_hash("cron", cron, zone, payload)
    hours = sorted(map(_hour, daily))
    times: list[Json] = [hour.isoformat() for hour in hours]
    return ticks_daily(hours, zone, begin, ahead), config_hash("daily", times, zone, payload)


def _hour(text: str) -> time:
    """A time of day: 09:00."""
    try:
        return time.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{text!r} is no time of day: write 09:00") from None
