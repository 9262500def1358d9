"""Junctions (sql/functions/junction.sql)."""

from collections.abc import Iterable
from datetime import timedelta

from airflow_provider_taskq.queue.encoding import interval_text
from airflow_provider_taskq.queue.errors import InvalidTask
from airflow_provider_taskq.queue.models import Junction
from airflow_provider_taskq.queue.verbs.call import Caller


class JunctionVerbs(Caller):
    """How suspended tasks go on together."""

    def junction(
        self, topic: str, groups: Iterable[Iterable[str]], junction: Junction | str = Junction.SINGULAR
    ) -> set[str]:
        """Releases groups of identifiers: their SUSPENDED tasks start anew. Returns the identifiers of those tasks.

        A group is released when each of its identifiers has a SUSPENDED task (SINGULAR), or a task in any state but
        REDUNDANT (ETERNAL). Each group stands on its own, judged by the states before the call. Never waits: a group
        with a suspended task that another transaction holds is left for a later call.
        """
        return set(
            self._value(
                "SELECT taskq.junction(%s::text, %b::text[], %b::int[], %s::text)",
                (topic, *members(groups), Junction(junction)),
            )
        )

    def juncture(
        self, name: str, topic: str, groups: Iterable[Iterable[str]], junction: Junction | str = Junction.SINGULAR
    ) -> list[int]:
        """Releases groups as `junction` does, each once under this name; returns the places of those still waited for.

        For somebody who waits until all have been released: it remembers what it has released, whoever asks again under
        the name, so that the answer is the same after a crash. A group is known by its identifiers.
        """
        return list(
            self._value(
                "SELECT taskq.juncture(%s::text, %s::text, %b::text[], %b::int[], %s::text)",
                (name, topic, *members(groups), Junction(junction)),
            )
        )

    def purge_junctures(self, older_than: timedelta) -> int:
        """Forgets what `juncture` released that long ago, and returns how many groups those were."""
        return int(self._value("SELECT taskq.purge_junctures(%s::text::interval)", (interval_text(older_than),)))


def members(groups: Iterable[Iterable[str]]) -> tuple[list[str], list[int]]:
    """The identifiers of all groups, and the place of the group that each is in, counted from 0."""
    identifiers: list[str] = []
    numbers: list[int] = []
    for number, group in enumerate(groups):
        if isinstance(group, str):
            raise InvalidTask(f"a group is a list of identifiers, not the one text {group[:50]!r}")
        given = list(group)
        identifiers += given
        numbers += [number] * len(given)
    return identifiers, numbers
