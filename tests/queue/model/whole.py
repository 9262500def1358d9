"""The model of the whole queue in memory. test_model.py compares the real queue with it."""

from dataclasses import dataclass, field

from tests.queue.model.ending import Ending
from tests.queue.model.operating import ModelLock, Operating
from tests.queue.model.polling import Polling
from tests.queue.model.reading import Reading


@dataclass
class Model(Operating, Polling, Ending, Reading):
    """All verbs of the model."""

    locks: dict[str, ModelLock] = field(default_factory=dict)

    def pass_time(self, hours: int) -> None:
        """Moves the clock forward."""
        self.now = self.now.plus(hours)
