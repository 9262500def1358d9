"""Complete (sql/functions/complete.sql)."""

from collections.abc import Mapping
from typing import Any

from airflow_provider_taskq.queue.encoding import interval_text, json_text
from airflow_provider_taskq.queue.errors import InvalidTask
from airflow_provider_taskq.queue.models import Decision, Owner, Result, Task
from airflow_provider_taskq.queue.tracebacks import error_summary, trace_text
from airflow_provider_taskq.queue.verbs.call import Caller


class CompleteVerbs(Caller):
    """How tasks end."""

    def complete(self, owner: Owner, decisions: Mapping[Task | int, Decision | Result | str]) -> None:
        """Carries out decisions on tasks that the owner holds; keys are tasks or their sequences.

        A decision is a Decision, a Result, or the name of a result in any case.

        All or nothing. It works until the lease is gone, lapsed or not; then LeaseLost. NotHeld, naming the
        sequences, for a task that the owner does not hold now.
        """
        if decisions:
            self._rows(
                "SELECT taskq.complete(%s::text, %s::bigint, %b::bigint[], %b::smallint[], %b::text[], %b::text[],"
                " %b::text[]::interval[], %b::text[])",
                (owner.name, owner.fence, *columns(decisions)),
            )


def columns(decisions: Mapping[Task | int, Decision | Result | str]) -> tuple[list[Any] | None, ...]:
    """The arguments of taskq.complete from p_sequences on."""
    made = _by_sequence(decisions)
    values = list(made.values())
    delays = [interval_text(decision.delay) for decision in values]
    failed = any(decision.error is not None for decision in values)
    return (
        list(made),
        [int(decision.result) for decision in values],
        [_message(sequence, decision) for sequence, decision in made.items()],
        [trace_text(decision.error) for decision in values] if failed else None,
        delays if any(delays) else None,
        [error_summary(decision.error) for decision in values] if failed else None,
    )


def _by_sequence(decisions: Mapping[Task | int, Decision | Result | str]) -> dict[int, Decision]:
    """The decisions by sequence; InvalidTask where one task is named twice."""
    made: dict[int, Decision] = {}
    for key, value in decisions.items():
        sequence = key.sequence if isinstance(key, Task) else key
        if sequence in made:
            raise InvalidTask(f"the task of sequence {sequence} is decided twice in one call")
        made[sequence] = value if isinstance(value, Decision) else Decision(Result.of(value))
    return made


def _message(sequence: int, decision: Decision) -> str | None:
    """A decision's message as JSON text; InvalidTask, naming the task, where it is none."""
    try:
        return json_text(decision.message)
    except ValueError as error:
        raise InvalidTask(f"the message of the decision on sequence {sequence} {error}") from None
