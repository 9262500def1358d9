"""What a drain said of itself, read from the lines that its driver prints."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

_CLAIMED = re.compile(r"claimed (\d[\d,]*) tasks of topic .*, (\d[\d,]*) more were held already$")
_DECIDED = re.compile(
    r"decided (?P<decided>[\d,]+) tasks in \S+ s, \S+ a second, in (?P<rounds>[\d,]+) rounds \((?P<ended>\w+)\): "
    r"(?P<completed>.*); pushed (?P<pushed>[\d,]+); gave back (?P<undecided>[\d,]+) undecided$"
)
_COUNT = re.compile(r"(\d[\d,]*) ([A-Z]+)")


class DrainReport:
    """Reads the driver's output on its way into the log of the Airflow task."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.claimed = 0
        self.completed: dict[str, int] = {}
        self._ended: dict[str, Any] = {}

    @property
    def decided(self) -> int:
        """How many tasks were decided; 0 where the driver did not come to say so."""
        return int(self._ended.get("decided", 0))

    @property
    def pushed(self) -> int:
        """How many tasks followed those; 0 likewise."""
        return int(self._ended.get("pushed", 0))

    def read(self, lines: Iterable[Any]) -> Iterator[Any]:
        """The lines as they come; what concerns a drain is remembered."""
        for line in lines:
            self._note(str(line).strip())
            yield line

    def summary(self) -> dict[str, Any]:
        """What the drain did in all; empty where it did not come to say so."""
        return {**self._ended, "completed": self.completed} if self._ended else {}

    def _note(self, line: str) -> None:
        """Remembers a claim, and the last line of a drain."""
        if found := _CLAIMED.search(line):
            self.claimed += _number(found[1])
        elif found := _DECIDED.search(line):
            counts = ("decided", "pushed", "undecided", "rounds")
            self._ended = {**{name: _number(found[name]) for name in counts}, "ended": found["ended"]}
            self.completed = {result: _number(count) for count, result in _COUNT.findall(found["completed"])}


def _number(text: str) -> int:
    """A number as people write it."""
    return int(text.replace(",", ""))
