"""Recurring tasks (sql/functions/ticks.sql)."""

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime

from airflow_provider_taskq.queue.errors import InvalidTask
from airflow_provider_taskq.queue.models import Json, NewTask
from airflow_provider_taskq.queue.task_input import Chunk, chunks
from airflow_provider_taskq.queue.verbs.call import Caller, all_or_nothing


class TickVerbs(Caller):
    """How tasks are made ahead, one for each moment, by any number of schedulers."""

    def install_ticks(
        self, topic: str, prefix: str, config_hash: str, ticks: Iterable[tuple[datetime, NewTask | Json]]
    ) -> int:
        """Adds the ticks that are missing and returns how many; a tick that exists is never changed.

        A tick is a nominal time with a payload, due at that time, or with a NewTask, whose identifier does not
        count and whose own due time does. Its task has the identifier `prefix/config_hash/time`, the time in UTC
        as 20261121T103000.000000Z. Before that, ticks of the same prefix with another hash are removed: those
        that wait, not those that are held or have ended. Schedulers that install ticks of one prefix wait for
        each other's transactions. Needs READ COMMITTED.
        """
        given = [(moment, _task(prefix, what)) for moment, what in ticks]
        for place, (moment, _) in enumerate(given):
            if getattr(moment, "tzinfo", None) is None:
                raise InvalidTask(f"topic {topic!r}, task at position {place}: its nominal time has no time zone")
        moments = [moment for moment, _ in given]
        cut = list(chunks(topic, (task for _, task in given))) or [Chunk(topic, 0, [], [])]
        with all_or_nothing(self.conn) if len(cut) > 1 else nullcontext():
            return sum(self._install_chunk(topic, prefix, config_hash, chunk, moments) for chunk in cut)

    def uninstall_ticks(self, topic: str, prefix: str, config_hash: str) -> int:
        """Removes the ticks of this prefix and hash that wait, not those held or ended; returns how many."""
        return int(
            self._value("SELECT taskq.uninstall_ticks(%s::text, %s::text, %s::text)", (topic, prefix, config_hash))
        )

    def _install_chunk(self, topic: str, prefix: str, config_hash: str, chunk: Chunk, moments: list[datetime]) -> int:
        """Installs the ticks of one chunk, of all of which these are the moments."""
        columns = chunk.columns()[1:]  # the identifiers are made by the function
        return int(
            self._value(
                "SELECT taskq.install_ticks(%s::text, %s::text, %s::text, %b::timestamptz[], %b::text[], %b::text[],"
                " %b::boolean[], %b::timestamptz[], %b::text[]::interval[], %b::text[]::interval[], %b::int[],"
                " %s::int, %b::int[], %b::text[], %b::text[])",
                (
                    *(topic, prefix, config_hash, moments[chunk.offset : chunk.offset + len(chunk.tasks)]),
                    *(*columns, chunk.offset, *chunk.dependencies()),
                ),
            )
        )


def _task(prefix: str, what: NewTask | Json) -> NewTask:
    """What a tick pushes: its identifier is known to the function only, so that the prefix stands for it here."""
    return replace(what, identifier=prefix) if isinstance(what, NewTask) else NewTask(prefix, what)
