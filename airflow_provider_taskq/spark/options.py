"""The options of the data source. Spark shows options in plans and logs, so none of them is a secret."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from airflow_provider_taskq.queue import Insertion, LeaseLost, TaskQueueError
from airflow_provider_taskq.queue.jobs import LeaseKey
from airflow_provider_taskq.spark.connection import ConnectionInfo

DEFAULT_PARTITIONS = 8
_MAX_INT, _MAX_BIGINT = 2**31 - 1, 2**63 - 1  # of the types of PostgreSQL
_MAX_DIGITS = len(str(_MAX_BIGINT))
_HELD_NAMES = {"topic", "owner", "fence", "partitions", "until"}
_COMPLETE_NAMES = {"topic", "owner", "fence", "stage", "stream"}
_ADDRESS_NAMES = {"conninfo", "dbname", "dsn", "host", "password", "port", "url", "user"}
_SPARK_NAMES = {"checkpointlocation", "queryname"}  # Spark passes its own options of a stream along


@dataclass(frozen=True, slots=True)
class HeldOptions:
    """Options of mode=held and mode=complete: the owner of the tasks, and the fence of its lease.

    Without a fence, the DataFrame uses the lease that the owner has when Spark plans the DataFrame. Without a topic, it
    reads the tasks of all topics. With `until`, a timestamp of the server, it reads no task that the owner claimed
    later.
    """

    mode: str
    owner: str
    fence: int | None
    topic: str | None
    partitions: int
    stage: str | None
    stream: str | None = None
    until: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str], mode: str) -> Self:
        """Parse the options. Raises TaskQueueError for one that is missing, unknown or invalid."""
        action, names = ("read", _HELD_NAMES) if mode == "held" else ("write", _COMPLETE_NAMES)
        values = parse_options(options, mode, action, names)
        return cls(
            mode=mode,
            owner=require(values, mode, "owner"),
            fence=parse_number(values["fence"], "fence") if "fence" in values else None,
            topic=values.get("topic"),
            partitions=parse_partitions(values),
            stage=values.get("stage"),
            stream=values.get("stream"),
            until=values.get("until"),
        )

    @property
    def lease(self) -> LeaseKey:
        """The owner, and the fence of its lease."""
        return self.owner, self.fence

    def with_fence(self, connection_info: ConnectionInfo) -> Self:
        """Return the options with the fence of the owner's lease. Raises LeaseLost if the owner has no lease."""
        if self.fence is not None:
            return self
        with connection_info.queue() as queue:
            owner = queue.owner(self.owner)
        if owner is None:
            raise LeaseLost(f"format taskq, mode {self.mode}: owner {self.owner!r} has no lease")
        return replace(self, fence=owner.fence)


@dataclass(frozen=True, slots=True)
class PushOptions:
    """Options of mode=push. With `stream` and `batch`, only one push commits under that name and number."""

    topic: str | None
    insertion: Insertion
    stream: str | None
    batch: int | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Parse the options. Raises TaskQueueError for one that is unknown or invalid."""
        values = parse_options(options, "push", "write", {"topic", "insertion", "stream", "batch"})
        insertion = values.get("insertion", "APPEND").upper()
        if insertion not in Insertion.__members__:
            names = ", ".join(Insertion.__members__)
            raise TaskQueueError(f"format taskq, mode push: unknown insertion {insertion!r}: use one of {names}")
        if "batch" in values and "stream" not in values:
            raise TaskQueueError("format taskq, mode push: option 'batch' needs option 'stream', the stream's name")
        batch = parse_number(values["batch"], "batch", 0) if "batch" in values else None
        return cls(values.get("topic"), Insertion[insertion], values.get("stream"), batch)


def parse_mode(options: Mapping[str, str], action: str, modes: tuple[str, ...]) -> str:
    """Return the option `mode`. Raises TaskQueueError unless it is one of `modes`, or if an option is an address."""
    values = {name.lower(): value for name, value in options.items()}
    if address := sorted(_ADDRESS_NAMES & set(values)):
        raise TaskQueueError(
            f"format taskq: option {address[0]!r} is refused, as Spark shows options: the address is that of TASKQ_DSN,"
            " TASKQ_DSN_FILE or libpq's environment, or of TaskQDataSource.with_connection()"
        )
    mode = values.get("mode")
    if mode not in modes:
        allowed = " or ".join(repr(each) for each in modes)
        lost = "" if mode else ": Spark forgets the options of a table whose CREATE TABLE names columns"
        raise TaskQueueError(f"format taskq: to {action}, set option mode to {allowed}, not {mode!r}{lost}")
    return mode


def parse_options(options: Mapping[str, str], mode: str, action: str, names: set[str]) -> dict[str, str]:
    """Return the options with names in lower case. Raises TaskQueueError for another mode or an unknown option."""
    parse_mode(options, action, (mode,))
    values = {name.lower(): value for name, value in options.items() if name.lower() != "mode"}
    if unknown := sorted(set(values) - names - _SPARK_NAMES):
        raise TaskQueueError(
            f"format taskq, mode {mode}: unknown option {unknown[0]!r}: use {', '.join(sorted(names))}"
        )
    return values


def require(values: Mapping[str, str], mode: str, name: str) -> str:
    """Return an option. Raises TaskQueueError if it is missing or empty."""
    if not values.get(name):
        raise TaskQueueError(f"format taskq, mode {mode}: option {name!r} is missing")
    return values[name]


def parse_partitions(values: Mapping[str, str]) -> int:
    """Return the option `partitions`, or 8 by default."""
    return parse_number(values.get("partitions", str(DEFAULT_PARTITIONS)), "partitions", most=_MAX_INT)


def parse_number(text: str, name: str, least: int = 1, most: int = _MAX_BIGINT) -> int:
    """Parse a whole number from `least` to `most`. Raises TaskQueueError, which names the option."""
    is_short = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS  # Python converts no 4,300 digits
    if not is_short or not least <= int(text) <= most:
        raise TaskQueueError(
            f"format taskq: option {name!r} must be a whole number from {least} to {most}, in at most {_MAX_DIGITS}"
            f" digits, not {text!r:.50}"
        )
    return int(text)


def parse_flag(text: str, name: str) -> bool:
    """Parse `true` or `false`. Raises TaskQueueError, which names the option."""
    if text.lower() not in ("true", "false"):
        raise TaskQueueError(f"format taskq: option {name!r} must be true or false, not {text!r}")
    return text.lower() == "true"
