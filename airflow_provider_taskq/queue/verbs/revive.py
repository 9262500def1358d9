"""Revive, reassign (sql/functions/revive.sql)."""

from collections.abc import Sequence

from airflow_provider_taskq.queue.encoding import state_number
from airflow_provider_taskq.queue.models import Result, Revival, State
from airflow_provider_taskq.queue.verbs.call import Caller


class ReviveVerbs(Caller):
    """What an operator does to tasks that have ended: EXPIRED, FAILED, SUSPENDED, FILTERED or SUCCEEDED."""

    def revive(
        self,
        topic: str,
        state: State | str | None = None,
        revival: Revival | str = Revival.RESET,
        *,
        sequences: Sequence[int] | None = None,
        from_: int = 0,
        to: int | None = None,
        size: int | None = None,
    ) -> dict[int, int]:
        """Starts ended tasks anew, and returns for each sequence the one that goes on in its stead.

        RESET makes the tasks themselves READY in their old place. The others mark them RECREATED, and then push a
        copy of each by that insertion, in order of sequence.

        Either those of a state, from `from_` to `to`, the `size` lowest; those that another transaction holds are
        left out. Or those named by `sequences`, all or none: InvalidState for one that has not ended or is unknown.
        """
        rows = self._rows(
            "SELECT * FROM taskq.revive(%s::text, %s::text, %b::bigint[], %s::int, %s::bigint, %s::bigint, %s::bigint)",
            (topic, Revival.of(revival), _named(sequences), state_number(state), from_, to, size),
        )
        return dict(rows)

    def reassign(
        self,
        topic: str,
        result: Result | str,
        *,
        sequences: Sequence[int] | None = None,
        state: State | str | None = None,
        from_: int = 0,
        to: int | None = None,
    ) -> int:
        """Overrides the result of ended tasks, and returns of how many. Their output stays.

        Which tasks is said as for `revive`. Those of a state that have this result already are not counted.
        """
        return int(
            self._value(
                "SELECT taskq.reassign(%s::text, %s::int, %b::bigint[], %s::int, %s::bigint, %s::bigint)",
                (topic, int(Result.of(result)), _named(sequences), state_number(state), from_, to),
            )
        )


def _named(sequences: Sequence[int] | None) -> list[int] | None:
    """The sequences as a list, which crosses as an array."""
    return None if sequences is None else list(sequences)
