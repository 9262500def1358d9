"""The model of reading: counts, results, pages and statuses."""

from collections import Counter
from collections.abc import Sequence

from airflow_provider_taskq.queue import Count, Result, State
from tests.queue.model.tasks import COMPLETED, Holdings, ModelTask, in_range


class Reading(Holdings):
    """The verbs that read."""

    def count(
        self, topic: str | None, recent: bool, state: State | None, identifier: str | None, reference: str | None,
        from_: int, to: int | None,
    ) -> dict[str, dict[State, Count]]:  # fmt: skip
        """Filters, then takes the newest of each identifier, then counts by state."""
        counted: dict[str, dict[State, Count]] = {}
        for name in [topic] if topic in self.topics else [] if topic is not None else self.topics:
            assert name is not None
            found = [task for task in self._matching(name, identifier, reference) if in_range(task, from_, to)]
            if recent:
                found = list({task.identifier: task for task in found}.values())
            counted[name] = {}
            for each in {task.state for task in found if state is None or task.state is state}:
                sequences = [task.sequence for task in found if task.state is each]
                counted[name][each] = Count(len(sequences), max(sequences))
        return counted

    def results(self, since: int, until: int) -> dict[str, dict[Result, int]]:
        """Counts results between the middles of two hours."""
        return {
            name: dict(
                Counter(
                    COMPLETED[task.state]
                    for task in self.of_topic(name, *COMPLETED)
                    if task.completed is not None and since < task.completed.hours <= until
                )
            )
            for name in self.topics
        }

    def latest(self, topic: str, identifiers: Sequence[str]) -> dict[str, int]:
        """The newest task of each identifier."""
        self.topic(topic)
        return {task.identifier: task.sequence for task in self.of_topic(topic) if task.identifier in identifiers}

    def page(
        self, topic: str, size: int, state: State | None, identifier: str | None, reference: str | None, from_: int,
        to: int | None, after: int | None = None, before: int | None = None,
    ) -> list[int]:  # fmt: skip
        """The tasks of a range, after or before a sequence."""
        self.topic(topic)
        found = [
            task.sequence
            for task in self._matching(topic, identifier, reference)
            if state in (None, task.state) and in_range(task, from_, to)
        ]
        if before is not None:
            return [sequence for sequence in reversed(found) if sequence < before][:size]
        return [sequence for sequence in found if after is None or sequence > after][:size]

    def resolve(self, hour: int, preceding: bool) -> int | None:
        """The first sequence after the middle of an hour, or the last before it."""
        if preceding:
            return max((task.sequence for task in self.tasks.values() if task.created.hours <= hour), default=None)
        return min((task.sequence for task in self.tasks.values() if task.created.hours > hour), default=None)

    def status(self, task: ModelTask) -> str:
        """Derives the status of a task."""
        topic = self.topics[task.topic]
        if task.state is State.FAILED and task.attempt >= topic.policy.retry.max_attempts:
            return "exhausted"
        if task.state is State.ACTIVE:
            return "running"
        if task.state is not State.READY:
            return task.state.name.lower()
        if topic.paused:
            return "paused"
        if task.attempt:
            return "retrying"
        return "scheduled" if task.due > self.now else "ready"

    def _matching(self, topic: str, identifier: str | None, reference: str | None) -> list[ModelTask]:
        return [
            task
            for task in self.of_topic(topic)
            if identifier in (None, task.identifier) and (reference is None or task.reference == reference)
        ]
