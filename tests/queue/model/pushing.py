"""The model of pushes and offers."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_taskq.queue import Insertion, InvalidTask, Json, NewTask, Outcome, State, TopicPolicy
from tests.queue.model.tasks import ENDED, HOUR, Holdings, ModelTask, ModelTopic, Moment


@dataclass(frozen=True)
class Draft:
    """A task to push, with its times in hours of the model."""

    identifier: str
    priority: int = 0
    suspended: bool = False
    delay: int | None = None
    at: int | None = None  # from now
    ttl: int | None = None
    depends_on: tuple[tuple[str, str], ...] = ()
    payload: Json = None
    reference: str | None = None

    def new_task(self, clock: datetime) -> NewTask:
        """The same task for the queue, with times of the server's clock."""
        return NewTask(
            self.identifier,
            self.payload,
            self.reference,
            self.suspended,
            None if self.at is None else clock + self.at * HOUR,
            None if self.delay is None else self.delay * HOUR,
            None if self.ttl is None else self.ttl * HOUR,
            self.priority,
            self.depends_on,
        )


class Pushing(Holdings):
    """The verbs of producers."""

    def create_topic(self, name: str, policy: TopicPolicy) -> bool:
        """Creates a topic, and keeps an existing one."""
        if name in self.topics:
            return False
        self.made += 1
        self.topics[name] = ModelTopic(self.made, policy)
        return True

    def push(
        self, topic: str, drafts: Sequence[Draft], insertion: Insertion, clock: Moment, given: Sequence[int]
    ) -> list[int]:
        """Pushes tasks. `clock`: the moment that `at` counts from; `given`: the sequences of the stored tasks."""
        if not drafts:
            return []
        self.topic(topic)
        last = {draft.identifier: place for place, draft in enumerate(drafts)}
        stored = [draft for place, draft in enumerate(drafts) if last[draft.identifier] == place]
        if insertion is not Insertion.DELETE:
            stored = list(drafts)
        self._check(topic, drafts, insertion, stored)
        if insertion is not Insertion.APPEND:
            self.displace(topic, set(last), insertion)
        now = self.tick()
        made = [self._make(topic, *each, now, clock) for each in zip(stored, given, strict=True)]
        if insertion is not Insertion.APPEND:
            for task in made:
                if any(later.identifier == task.identifier and later.sequence > task.sequence for later in made):
                    task.supersede(State.REDUNDANT)
        return list(given)

    def displace(self, topic: str, identifiers: set[str], insertion: Insertion) -> None:
        """Changes older tasks as the insertion requires."""
        for task in self.of_topic(topic):
            if task.identifier not in identifiers or task.state is State.ACTIVE:
                continue
            if insertion is Insertion.DELETE:
                del self.tasks[task.sequence]
            elif task.state is State.READY or (insertion is Insertion.REPLACE and task.state in ENDED):
                task.supersede(State.REDUNDANT)

    def offer(
        self, topic: str, drafts: Sequence[Draft], if_exists: str, clock: Moment, given: Sequence[int]
    ) -> list[tuple[Outcome, int]]:
        """Applies first the first offer of each identifier, then the second: updates waiting tasks, creates others."""
        self.topic(topic)
        reported: dict[int, tuple[Outcome, int]] = {}
        left, sequences = list(enumerate(drafts)), iter(given)
        while left:
            first = {draft.identifier: place for place, draft in reversed(left)}
            now, made = self.tick(), self.tick()
            for place in sorted(first.values()):
                draft = drafts[place]
                if waiting := self._waiting(topic, draft.identifier):
                    changed = if_exists == "update" and self._replace(waiting[-1], draft, now, clock)
                    reported[place] = (Outcome.UPDATED if changed else Outcome.IGNORED, waiting[-1].sequence)
                else:
                    task = self._make(topic, draft, next(sequences), made, clock)
                    reported[place] = (Outcome.CREATED, task.sequence)
            left = [(place, draft) for place, draft in left if place not in reported]
        return [reported[place] for place in range(len(drafts))]

    def drop(self, topic: str, identifier: str) -> bool:
        """Removes the waiting tasks of an identifier."""
        self.topic(topic)
        waiting = self._waiting(topic, identifier)
        for task in waiting:
            del self.tasks[task.sequence]
        return bool(waiting)

    def _waiting(self, topic: str, identifier: str) -> list[ModelTask]:
        return [task for task in self.of_topic(topic, State.READY) if task.identifier == identifier]

    def _replace(self, task: ModelTask, draft: Draft, now: Moment, clock: Moment) -> bool:
        """Updates a waiting task. Returns whether anything changed. Without a schedule a due task keeps its place."""
        place = min(task.due, now) if draft.at is None else clock.plus(draft.at)
        if draft.delay is not None:
            place = now.plus(draft.delay)
        before = (task.payload, task.reference, task.ttl, task.priority, task.due)
        after = (draft.payload, draft.reference, draft.ttl, draft.priority, place)
        if after != before:
            task.payload, task.reference, task.ttl, task.priority, task.due = after
            task.place = place
        return after != before

    def _check(self, topic: str, drafts: Sequence[Draft], insertion: Insertion, stored: list[Draft]) -> None:
        """Checks that each dependency exists before the push, or comes earlier in it."""
        gone = {draft.identifier for draft in drafts} if insertion is Insertion.DELETE else set()
        known = {
            (task.topic, task.identifier)
            for task in self.tasks.values()
            if task.topic != topic or task.identifier not in gone or task.state is State.ACTIVE
        }
        for draft in drafts:
            if not set(draft.depends_on) <= known - {(topic, draft.identifier)}:
                raise InvalidTask(draft)
            if any(draft is each for each in stored):
                known.add((topic, draft.identifier))

    def _make(self, topic: str, draft: Draft, sequence: int, now: Moment, clock: Moment) -> ModelTask:
        place = now if draft.at is None else clock.plus(draft.at)
        if draft.delay is not None:
            place = now.plus(draft.delay)
        task = ModelTask(
            sequence, topic, draft.identifier, State.SUSPENDED if draft.suspended else State.READY, now, place, place
        )
        task.priority, task.payload, task.reference, task.ttl = (
            *(draft.priority, draft.payload, draft.reference, draft.ttl),
        )
        task.depends_on = tuple((self.topics[name].number, identifier) for name, identifier in draft.depends_on)
        self.tasks[sequence] = task
        return task
