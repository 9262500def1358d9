"""The model of operators' verbs, revive, reassign, junction, purge and lock, and the model of the whole queue."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_provider_taskq.queue import Insertion, Junction, Result, Revival, State, TopicPolicy
from tests.queue.model.ending import Ending
from tests.queue.model.polling import Polling
from tests.queue.model.pushing import Pushing
from tests.queue.model.reading import Reading
from tests.queue.model.tasks import ModelTask, Moment, in_range

SPARED = (State.ACTIVE, State.READY, State.EXPIRED)


@dataclass
class ModelLock:
    """A lock: a lease by name."""

    held_by: str | None
    at_least: Moment
    until: Moment


class Operating(Pushing):
    """The verbs of operators."""

    locks: dict[str, ModelLock]

    def revive(self, topic: str, old: list[ModelTask], revival: Revival, given: Sequence[int]) -> dict[int, int]:
        """Revives tasks. `given`: the sequences of the copies."""
        self.tick()
        if revival is Revival.RESET:
            for task in old:
                task.reset()
            return {task.sequence: task.sequence for task in old}
        for task in old:
            task.supersede(State.RECREATED)
        for task, sequence in zip(old, given, strict=True):
            self._recreate(topic, task, Insertion(revival), sequence)
        return dict(zip((task.sequence for task in old), given, strict=True))

    def _recreate(self, topic: str, old: ModelTask, insertion: Insertion, sequence: int) -> None:
        """Pushes a copy of one task."""
        if insertion is not Insertion.APPEND:
            self.displace(topic, {old.identifier}, insertion)
        now = self.now
        copy = ModelTask(sequence, topic, old.identifier, State.READY, now, now, now, old.priority)
        copy.payload, copy.reference, copy.ttl, copy.depends_on = old.payload, old.reference, old.ttl, old.depends_on
        self.tasks[sequence] = copy

    def reassign(self, found: list[ModelTask], result: Result, state: State | None) -> int:
        now = self.tick()
        changed = [task for task in found if state != result + 3]
        for task in changed:
            task.state = State(result + 3)
            task.completed = task.completed or now
        return len(changed)

    def junction(self, topic: str, groups: list[list[str]], junction: Junction) -> set[str]:
        self.topic(topic)
        self.tick()
        suspended = self.of_topic(topic, State.SUSPENDED)
        counts = suspended if junction is Junction.SINGULAR else self.of_topic(topic, *(set(State) - {State.REDUNDANT}))
        present = {task.identifier for task in counts}
        whole = {name for group in groups if set(group) <= present for name in group}
        released = [task for task in suspended if task.identifier in whole]
        for task in released:
            task.reset()
        return {task.identifier for task in released}

    def purge(self, topic: str, from_: int, to: int | None, state: State | None) -> int:
        self.topic(topic)
        states = [state] if state is not None else [each for each in State if each not in SPARED]
        return self._remove([task for task in self.of_topic(topic, *states) if in_range(task, from_, to)])

    def purge_all(self, topic: str) -> int:
        self.topic(topic)
        return self._remove(self.of_topic(topic))

    def _remove(self, tasks: list[ModelTask]) -> int:
        for task in tasks:
            del self.tasks[task.sequence]
        return len(tasks)

    def drop_topic(self, topic: str) -> bool:
        if topic not in self.topics:
            return False
        self._remove(self.of_topic(topic))
        del self.topics[topic]
        return True

    def alter_topic(self, topic: str, policy: TopicPolicy) -> None:
        known = self.topic(topic)
        if not policy.retry.probe:
            known.failing, known.probes, known.promoted = False, set(), 0
        known.policy = policy

    def set_paused(self, topic: str, paused: bool) -> bool:
        known = self.topic(topic)
        changed = known.paused is not paused
        known.paused = paused
        return changed

    def lock(self, name: str, by: str, at_most: int, at_least: int) -> bool:
        now = self.tick()
        found = self.locks.get(name)
        if found is None or found.until <= now:
            self.locks[name] = ModelLock(by, now.plus(at_least), now.plus(at_most))
        elif found.held_by != by:
            return False
        else:
            found.at_least = max(found.at_least, now.plus(at_least))
            found.until = max(found.until, now.plus(at_most))
        return True

    def unlock(self, name: str, by: str) -> bool:
        now = self.tick()
        found = self.locks.get(name)
        if found is None or found.held_by != by or found.until <= now:
            return False
        found.held_by, found.until = None, found.at_least
        return True


@dataclass
class Model(Operating, Polling, Ending, Reading):
    """All verbs of the model."""

    locks: dict[str, ModelLock] = field(default_factory=dict)

    def pass_time(self, hours: int) -> None:
        """Moves the clock forward."""
        self.now = self.now.plus(hours)
