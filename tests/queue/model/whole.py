"""The queue as the contract tells it, in memory: what test_model holds the real one against."""

from dataclasses import dataclass, field

from tests.queue.model.ending import Ending
from tests.queue.model.operating import ModelLock, Operating
from tests.queue.model.polling import Polling
from tests.queue.model.reading import Reading


@dataclass
class Model(Operating, Polling, Ending, Reading):
    """All verbs, each as its section of the contract has it."""

    locks: dict[str, ModelLock] = field(default_factory=dict)

    def pass_time(self, hours: int) -> None:
        """The clock goes on."""
        self.now = self.now.plus(hours)
