"""A history of a queue: what producers, workers and readers saw, as JSON lines in one file for each process.

The format knows no product. Each line is an event with the moments `began` and `ended` of the call, in seconds of one
clock for all processes of the machine (`time.monotonic`). A call without an answer has `ended` null: it may have been
carried out, or not. What each kind of event carries:

    push      task, identifier        a producer adds a task: a line before the call, and one after its answer
    claim     task, identifier, attempt, owner, fence, until
                                      a worker got a task; `until` is the earliest end of its lease
    decision  task, attempt, owner, fence, result
                                      a worker has ended an attempt, or asked to; it gives a task back in this way,
                                      too: a line before the call, and one after its answer
    read      group, position, task   a reader got an event of the log, and has committed its place

A claim is known by its task, attempt, owner and fence. A lease that lapses does not count the attempt, so the next
claim may have the same attempt. A later registration of an owner's name has a greater fence and takes over its tasks.

`until` is the begin of the last answered call that renewed the lease, plus its length. A claim whose `until` is not
after its `ended` was not certainly held. A program that does not know when it claimed a task writes an early moment as
`began`, and as `ended` the moment when it got the task. A claim without an answer may be missing, because its owner
does not know the task. After a call without an answer, a program registers again before it claims again.

At the end, one process writes what is left, with one line for each task and one for each effect:

    task      task, identifier, state, completed, error    `completed` is the moment of its end, or null
    effect    task, attempt, owner, fence    a row that was committed together with the decision
    logged    position, task, identifier     the events of the log, in order
"""

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Event = dict[str, Any]


class Recorder:
    """Writes the events of one process. A line is in the file when the call returns, even if the process is killed."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = os.open(folder / f"{name}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def write(self, kind: str, began: float, ended: float | None, rows: Iterable[Event]) -> None:
        """Writes an event for each row of a call. `ended` is None if the call got no answer."""
        lines = [json.dumps({"kind": kind, "began": began, "ended": ended, **row}) + "\n" for row in rows]
        with self._lock:
            os.write(self._file, "".join(lines).encode())

    def final(self, kind: str, rows: Iterable[Event]) -> None:
        """Writes rows of the end."""
        now = time.monotonic()
        self.write(kind, now, now, rows)


def read(folder: Path) -> Iterator[Event]:
    """The events of all processes."""
    for file in sorted(folder.glob("*.jsonl")):
        yield from read_file(file)


def read_file(file: Path) -> Iterator[Event]:
    """The events of a process. If it was killed, it may have left half a line at the end."""
    with file.open() as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)
