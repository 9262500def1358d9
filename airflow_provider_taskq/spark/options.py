"""The options of the data source: names of things, never a secret."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from airflow_provider_taskq.queue import LeaseLost, TaskQueue, TaskQueueError
from airflow_provider_taskq.spark.route import Route

PARTITIONS = 8
_KNOWN = {"held": {"topic", "owner", "fence", "partitions"}, "complete": {"topic", "owner", "fence", "stage"}}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a DataFrame of the format `taskq` reads or writes, and under whose lease.

    Without a fence it is that of the lease which the owner's name has when the DataFrame is planned; without a topic
    all that the owner holds is read.
    """

    mode: str
    owner: str
    fence: int | None
    topic: str | None
    partitions: int
    stage: str | None

    @classmethod
    def parsed(cls, options: Mapping[str, str], mode: str) -> Self:
        """The options of one use of the data source; a sentence for each that is missing, unknown or not a number."""
        given = {name.lower(): value for name, value in options.items()}
        asked = given.pop("mode", None)
        if asked != mode:
            doing = "read" if mode == "held" else "write"
            raise TaskQueueError(f"format taskq: to {doing}, set option mode to {mode!r}, not {asked!r}")
        if unknown := sorted(set(given) - _KNOWN[mode]):
            known = ", ".join(sorted(_KNOWN[mode]))
            raise TaskQueueError(f"format taskq, mode {mode}: unknown option {unknown[0]!r}; there are {known}")
        return cls(
            mode=mode,
            owner=_required(given, mode, "owner"),
            fence=_number(given["fence"], "fence") if "fence" in given else None,
            topic=given.get("topic"),
            partitions=_number(given.get("partitions", str(PARTITIONS)), "partitions"),
            stage=given.get("stage"),
        )

    def fenced(self, route: Route) -> Self:
        """The same with a fence; LeaseLost where the owner has no lease."""
        if self.fence is not None:
            return self
        with route.connect() as conn:
            owner = TaskQueue(conn).owner(self.owner)
        if owner is None:
            raise LeaseLost(f"format taskq, mode {self.mode}: owner {self.owner!r} has no lease")
        return replace(self, fence=owner.fence)


def _required(given: Mapping[str, str], mode: str, name: str) -> str:
    """An option that must be there."""
    if not given.get(name):
        raise TaskQueueError(f"format taskq, mode {mode}: option {name!r} is missing")
    return given[name]


def _number(text: str, name: str) -> int:
    """An option that is a whole number from 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise TaskQueueError(f"format taskq: option {name!r} must be a whole number from 1, not {text!r}")
    return int(text)
