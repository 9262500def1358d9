"""What a look at the queue's health found."""

from dataclasses import dataclass
from enum import IntEnum

from airflow_provider_taskq.queue.models import NamedEnum


class Severity(NamedEnum, IntEnum):
    """How bad it is; what is worse is greater."""

    FINE = 0
    NOTICE = 1
    WARNING = 2
    CRITICAL = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that slows or threatens the queue, or a value that would, told in a sentence.

    `value` is what was measured (seconds, rows, bytes or transactions, as the sentence says), `pid` the session of
    the server to look at. `topic`, `sequence` and `owner` say what it is about, where it is about one of these.
    """

    severity: Severity
    subject: str
    detail: str
    value: int | None
    pid: int | None
    topic: str | None = None
    sequence: int | None = None
    owner: str | None = None
