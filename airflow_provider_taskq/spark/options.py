"""The options of the data source: names of things, never a secret."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from airflow_provider_taskq.queue import LeaseLost, TaskQueue, TaskQueueError
from airflow_provider_taskq.spark.connection import Route

PARTITIONS = 8
_KNOWN = {"held": {"topic", "owner", "fence", "partitions"}, "complete": {"topic", "owner", "fence", "stage", "stream"}}

_SPARKS_OWN = {"checkpointlocation", "queryname"}  # which come along with those of a stream


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
    stream: str | None = None

    @classmethod
    def parsed(cls, options: Mapping[str, str], mode: str) -> Self:
        """The options of one use of the data source; a sentence for each that is missing, unknown or not a number."""
        given = known(options, mode, "read" if mode == "held" else "write", _KNOWN[mode])
        return cls(
            mode=mode,
            owner=_required(given, mode, "owner"),
            fence=number(given["fence"], "fence") if "fence" in given else None,
            topic=given.get("topic"),
            partitions=number(given.get("partitions", str(PARTITIONS)), "partitions"),
            stage=given.get("stage"),
            stream=given.get("stream"),
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


def mode_of(options: Mapping[str, str], doing: str, modes: tuple[str, ...]) -> str:
    """The mode that is asked for; a sentence where it is not one in which this can be done."""
    mode = {name.lower(): value for name, value in options.items()}.get("mode")
    if mode not in modes:
        there = " or ".join(repr(each) for each in modes)
        raise TaskQueueError(f"format taskq: to {doing}, set option mode to {there}, not {mode!r}")
    return mode


def known(options: Mapping[str, str], mode: str, doing: str, names: set[str]) -> dict[str, str]:
    """The options of a mode by their names in lower case; a sentence for another mode, or for one that is unknown."""
    given = {name.lower(): value for name, value in options.items()}
    asked = given.pop("mode", None)
    if asked != mode:
        raise TaskQueueError(f"format taskq: to {doing}, set option mode to {mode!r}, not {asked!r}")
    if unknown := sorted(set(given) - names - _SPARKS_OWN):
        raise TaskQueueError(
            f"format taskq, mode {mode}: unknown option {unknown[0]!r}; there are {', '.join(sorted(names))}"
        )
    return given


def number(text: str, name: str, least: int = 1) -> int:
    """An option that is a whole number from 1, or from another least one."""
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise TaskQueueError(f"format taskq: option {name!r} must be a whole number from {least}, not {text!r}")
    return int(text)


def flag(text: str, name: str) -> bool:
    """An option that is true or false."""
    if text.lower() not in ("true", "false"):
        raise TaskQueueError(f"format taskq: option {name!r} must be true or false, not {text!r}")
    return text.lower() == "true"
