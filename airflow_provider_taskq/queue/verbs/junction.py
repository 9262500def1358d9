"""Junctions (sql/functions/junction.sql)."""

from collections.abc import Iterable

from airflow_provider_taskq.queue.errors import InvalidTask
from airflow_provider_taskq.queue.model import Junction
from airflow_provider_taskq.queue.verbs.call import Caller


class JunctionVerbs(Caller):
    """How suspended tasks go on together."""

    def junction(self, topic: str, groups: Iterable[Iterable[str]], junction: Junction = Junction.SINGULAR) -> set[str]:
        """Releases groups of identifiers: their SUSPENDED tasks start anew. Returns the identifiers of those tasks.

        A group is released when each of its identifiers has a SUSPENDED task (SINGULAR), or a task in any state but
        REDUNDANT (ETERNAL). Each group stands on its own, judged by the states before the call. Never waits: a group
        with a suspended task that another transaction holds is left for a later call.
        """
        identifiers: list[str] = []
        numbers: list[int] = []
        for number, group in enumerate(groups):
            if isinstance(group, str):
                raise InvalidTask(f"a group is a list of identifiers, not the one text {group[:50]!r}")
            members = list(group)
            identifiers += members
            numbers += [number] * len(members)
        return set(
            self._value(
                "SELECT taskq.junction(%s::text, %b::text[], %b::int[], %s::text)",
                (topic, identifiers, numbers, junction),
            )
        )
