"""Claims: how a gate passes the tasks that it claimed on to the tasks of its DAG."""

import ast
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Self

import psycopg
from psycopg.rows import tuple_row

from airflow_provider_taskq.queue.client import TaskQueue
from airflow_provider_taskq.queue.connection import open_cursor
from airflow_provider_taskq.queue.errors import InvalidArgument, LeaseLost
from airflow_provider_taskq.queue.models import Owner


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of a gate with `claim=n`: the topic, the owner, the fence of its registration, the number of tasks.

    The fence is the key to the tasks. The next task of the DAG uses them under this fence, or takes them over by it
    (`TaskQueue.take_over`). A later claim under the same owner name ends this one.
    """

    topic: str
    owner: str
    fence: int
    claimed: int

    @classmethod
    def parse(cls, given: Any) -> Self:
        """Return the claim in a dict (`gate.output`), or in the text that a template makes of such a dict.

        :raises InvalidArgument: for None, another text, or a dict that lacks a field.
        """
        value = given
        if isinstance(given, str):
            with suppress(ValueError):
                value = parse_rendered(given)
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping) or "fence" not in value:
            raise InvalidArgument(
                f"invalid claim {_shown(given)}: pass the output of a TaskQSensor with claim=n, as claim=gate.output"
            )
        try:
            return cls(str(value["topic"]), str(value["owner"]), int(value["fence"]), int(value.get("claimed", 0)))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgument(f"invalid claim {_shown(given)}: {type(error).__name__} {error}") from None

    def as_dict(self) -> dict[str, Any]:
        """Return the claim as an XCom value."""
        return asdict(self)

    def holder(self, queue: TaskQueue) -> Owner:
        """Return the registration that holds the claim now: the gate's, or that of a task that took the claim over.

        :raises LeaseLost: if no registration holds the claim. The message says why, and what to do.
        """
        owner = queue.owner(self.owner, self.fence)
        if owner is not None:
            return owner
        if (later := queue.owner(self.owner)) is None:
            reason = (
                "its lease was released, or it lapsed and expired, and the tasks that were not completed went back to "
                "the topic. Clear the gate to claim again; if the lease lapsed, give the gate a longer lease. Or "
                "another role made the claim, and this one is limited to topics: let both roles act as one by SET role"
            )
        else:
            reason = (
                f"a later registration of the same owner, fence {later.fence}, took the tasks over. "
                "Clear the gate to claim again, or give each gate a claim_as of its own"
            )
        raise LeaseLost(
            f"the claim of {self.claimed} tasks in topic {self.topic!r} under owner {self.owner!r} and fence "
            f"{self.fence} is gone: {reason}"
        )


def held_sequences(connection: psycopg.Connection[Any], owner: Owner, topic: str | None = None) -> list[int]:
    """Return the sequences that an owner holds, in a topic or in all topics, without payloads."""
    rows = open_cursor(connection, tuple_row).execute(
        "SELECT sequence FROM taskq.held(%s::text, %s::bigint, %s::text)",
        (owner.name, owner.fence, topic),
        prepare=False,
    )
    return [sequence for (sequence,) in rows]


def parse_rendered(text: str) -> Any:
    """Parse the text that a template makes of a value: JSON or, as Jinja renders a list or dict, Python.

    :raises ValueError: for any other text. The message does not contain the text.
    """
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ValueError("the text is neither JSON nor Python") from None


def _shown(value: Any) -> str:
    # Without the contents of the value, which may be the output of any task.
    if value is None or value in ("", "None"):
        return "None"
    keys = f" with the keys {sorted(map(str, value))[:10]}" if isinstance(value, Mapping) else ""
    return f"of type {type(value).__name__}{keys}"
