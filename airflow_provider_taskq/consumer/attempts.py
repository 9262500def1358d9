"""How often the event at hand has failed, and when to try it again."""

from datetime import timedelta

from airflow_provider_taskq.consumer.config import RetryDelays


class AttemptCounter:
    """A series of back-off intervals: begun by an event's first failure, at an end when it is done with."""

    def __init__(self, policy: RetryDelays) -> None:
        self.policy = policy
        self.failures = 0
        self._of: int | None = None

    def failed(self, of: int | None = None) -> timedelta | None:
        """How long to wait before the next try; None to give up. `of`: the sequence of the event that failed."""
        if of != self._of:
            self.reset()
            self._of = of
        self.failures += 1
        return self.policy.delay(self.failures)

    def reset(self) -> None:
        """Begins anew, after a success or a skip."""
        self.failures = 0
