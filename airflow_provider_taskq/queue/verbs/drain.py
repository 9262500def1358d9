"""Drains: programs that work until a topic has nothing more for them (sql/functions/drain.sql)."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow_provider_taskq.queue.drains import DrainCounts, DrainReport, FailedTask
from airflow_provider_taskq.queue.models import Owner, State
from airflow_provider_taskq.queue.verbs.call import Caller


class DrainVerbs(Caller):
    """The start, the counts and the report of a drain."""

    def begin_drain(self, name: str, topic: str, owner: Owner | None = None) -> datetime:
        """Stores that a drain of this name begins, and returns the moment from which its tasks count.

        After a drain of the same name that was killed before its report, this is the moment at which that one began.
        `owner`: the owner that drains; None if several do, whose names are `name/...`. UnknownTopic.
        """
        fence = None if owner is None else owner.fence
        began: datetime = self._value("SELECT taskq.begin_drain(%s::text, %s::bigint, %s::text)", (name, fence, topic))
        return began

    def end_drain(self, name: str, report: Mapping[str, Any], owner: Owner | None = None) -> bool:
        """Stores the report of a drain, at most 64 KiB of JSON.

        False, and nothing is stored, if a later drain of this name has begun under another fence.
        """
        fence = None if owner is None else owner.fence
        return bool(
            self._value("SELECT taskq.end_drain(%s::text, %s::bigint, %s::text)", (name, fence, json.dumps(report)))
        )

    def drain_report(self, name: str) -> DrainReport | None:
        """The latest drain of this name; None if there was none."""
        rows = self._rows("SELECT topic, began, finished, report FROM taskq.drain_named(%s::text)", (name,))
        return DrainReport(*rows[0]) if rows else None

    def drain_counts(self, topic: str, name: str, since: datetime, first: int = 5) -> DrainCounts:
        """What the owner of this name, and owners named `name/...`, have ended in a topic since a moment.

        `first`: how many of the failed tasks are named, those with the lowest sequences. Costs about 2 s for each
        million tasks that ended since then. UnknownTopic.
        """
        asked = (topic, name, since)
        rows = self._rows("SELECT state, count FROM taskq.ended_by(%s::text, %s::text, %s::timestamptz)", asked)
        by_state = dict(rows)
        failed = by_state.get(State.FAILED, 0)
        named = (
            self._rows(
                "SELECT sequence, identifier, error FROM taskq.failed_by(%s::text, %s::text, %s::timestamptz, %s::int)",
                (*asked, first),
            )
            if failed
            else []
        )
        return DrainCounts(failed, sum(by_state.values()), tuple(FailedTask(*row) for row in named))
