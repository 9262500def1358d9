"""The model of polls."""

from collections.abc import Callable, Iterable

from airflow_provider_taskq.queue import Condition, LeaseLost, Order, Owner, State
from tests.queue.model.ending import Ending
from tests.queue.model.tasks import ModelOwner, ModelTask, Moment, hours

BLOCKING = {
    Condition.NONE: (),
    Condition.SINGULAR_BY_IDENTIFIER: (),
    Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_ON_FAILURE: (State.EXPIRED, State.FAILED),
    Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS: (State.EXPIRED, State.FAILED, State.SUSPENDED),
}


class Polling(Ending):
    """The verbs that hand out tasks."""

    def poll(self, topic: str, owner: Owner, size: int, order: Order, condition: Condition) -> list[ModelTask]:
        """Makes due READY tasks ACTIVE."""
        self.topic(topic)
        self._running(owner)
        self.tick()
        due, known = self.due(topic, order, condition), self.topics[topic]
        if size > 0 and known.failing:
            known.promoted = next((task.sequence for task in due if task.attempt), known.promoted)
        found = self._cut(due[: max(size, 0)], owner)
        if not found and size > 0 and self._take_back(topic):
            return self.poll(topic, owner, size, order, condition)
        return self._take(found, owner)

    def poll_batch(self, topic: str, owner: Owner, identifiers: int, size: int) -> list[ModelTask]:
        """Hands out whole groups, or the first tasks of each."""
        self.topic(topic)
        self._running(owner)
        self.tick()
        groups = list(self.groups(topic).values())[: max(identifiers, 0)]
        if groups and size:
            self.topics[topic].promoted = 0
        found = self._cut([task for group in groups for task in (group if size == -1 else group[:size])], owner)
        if not found and identifiers > 0 and size and self._take_back(topic):
            return self.poll_batch(topic, owner, identifiers, size)
        return self._take(found, owner)

    def ready(self, topic: str, limit: int, condition: Condition) -> int:
        """The number of tasks that a poll would return."""
        self.topic(topic)
        self.tick()
        return min(len(self.due(topic, Order.FIRST_IN_FIRST_OUT, condition)), max(limit, 0))

    def due(self, topic: str, order: Order, condition: Condition) -> list[ModelTask]:
        """The tasks that a poll could return now, in polled order."""
        if self.topics[topic].paused:
            return []
        found = self._in_order([task for task in self.of_topic(topic, State.READY) if self._is_due(task)], order)
        if condition is not Condition.NONE:
            names = {task.identifier for task in found}
            turns = {id(self._turn(topic, name, found)) for name in names if not self._blocked(topic, name, condition)}
            found = [task for task in found if id(task) in turns]
        return list(self._one_retry(topic, found))

    def groups(self, topic: str) -> dict[str, list[ModelTask]]:
        """The groups that a poll could return now, in the order of their first tasks."""
        if self.topics[topic].paused:
            return {}
        groups: dict[str, list[ModelTask]] = {}
        ready = self.of_topic(topic, State.READY)
        for task in self._in_order([task for task in ready if self._is_due(task)], Order.FIRST_IN_FIRST_OUT):
            groups.setdefault(task.identifier, []).append(task)
        kept_back = {task.identifier for task in self.of_topic(topic, State.ACTIVE, State.FAILED)}
        kept_back |= {task.identifier for task in ready if task.attempt and not self._is_due(task)}
        kept_back |= set(self._other_retries(topic, [name for name in groups if name not in kept_back], ready))
        return {
            name: sorted([task for task in group if task.attempt], key=lambda task: task.sequence)
            + [task for task in group if not task.attempt]
            for name, group in groups.items()
            if name not in kept_back
        }

    def _other_retries(self, topic: str, names: list[str], ready: list[ModelTask]) -> list[str]:
        """While retries fail, a group with retries is one probe: these are the retries of other groups."""
        due = [task for task in ready if task.attempt and task.identifier in names]
        allowed = self._retries_allowed(topic)
        if allowed is None:
            return []
        first = {task.identifier for task in sorted(due, key=_turn_of_retry)[:allowed]}
        return [task.identifier for task in due if task.identifier not in first]

    def _turn(self, topic: str, identifier: str, due: list[ModelTask]) -> ModelTask:
        """The task that has the turn of an identifier."""
        own = [task for task in self.of_topic(topic, State.ACTIVE, State.READY) if task.identifier == identifier]
        active = [task for task in own if task.state is State.ACTIVE]
        attempted = [task for task in own if task.attempt]
        return (active + attempted + [task for task in due if task.identifier == identifier])[0]

    def _blocked(self, topic: str, identifier: str, condition: Condition) -> bool:
        return any(
            task.identifier == identifier for state in BLOCKING[condition] for task in self.of_topic(topic, state)
        )

    def _is_due(self, task: ModelTask) -> bool:
        return task.due <= self.now and all(self._succeeded(*each) for each in task.depends_on)

    def _succeeded(self, number: int, identifier: str) -> bool:
        """Whether the latest task has succeeded, or no task is left."""
        latest = self.latest_of(number, identifier)
        return latest is None or latest.state is State.SUCCEEDED

    def _one_retry(self, topic: str, found: list[ModelTask]) -> Iterable[ModelTask]:
        """While retries fail, the one that a poll has promoted, or else the one whose last failure is the earliest."""
        allowed, promoted = self._retries_allowed(topic), self.topics[topic].promoted
        if allowed is None:
            return found
        retries = sorted((task for task in found if task.attempt), key=_turn_of_retry)
        first = [task for task in retries if task.sequence == promoted] or retries[:allowed]
        return [task for task in found if not task.attempt or task in first]

    def _retries_allowed(self, topic: str) -> int | None:
        """The number of retries that may be handed out; None for all. At most one while retries fail."""
        known = self.topics[topic]
        if not known.policy.retry.probe or not known.failing:
            return None
        if any(task.sequence in known.probes for task in self.of_topic(topic, State.ACTIVE)):
            return 0
        if known.failed is None or known.failed.plus(hours(known.policy.retry.base)) <= self.now:
            return 1
        return int(
            any(task.attempt and known.failed < task.due <= self.now for task in self.of_topic(topic, State.READY))
        )

    def _cut(self, tasks: list[ModelTask], owner: Owner) -> list[ModelTask]:
        """The first tasks that may be held together: after a crash few, and no others with them."""
        crashed = bool(tasks) and tasks[0].max_claim is not None
        if any(crashed or task.max_claim is not None for task in self.held_by(owner.name)):
            return []
        kept: list[ModelTask] = []
        for task in tasks:
            if (task.max_claim is not None) is not crashed:
                break
            if len(kept) >= min((each.max_claim for each in [*kept, task] if each.max_claim), default=len(tasks)):
                break
            kept.append(task)
        return kept

    def _take(self, tasks: list[ModelTask], owner: Owner) -> list[ModelTask]:
        for task in tasks:
            topic = self.topics[task.topic]
            if task.attempt and topic.failing:
                topic.probes.add(task.sequence)
                topic.promoted = 0
            task.state, task.owner = State.ACTIVE, owner.name
            task.attempt += 1
        return tasks

    def _running(self, owner: Owner) -> ModelOwner:
        known = self.leaseholder(owner)
        if known.until <= self.now:
            raise LeaseLost(owner.name)
        return known

    def _in_order(self, tasks: list[ModelTask], order: Order) -> list[ModelTask]:
        by_time: Callable[[ModelTask], object] = lambda task: (task.due, task.sequence)  # noqa: E731
        return sorted(
            sorted(tasks, key=by_time, reverse=order is Order.LAST_IN_FIRST_OUT),  # type: ignore[arg-type]
            key=lambda task: -task.priority,
        )


def _turn_of_retry(task: ModelTask) -> tuple[Moment, int, int]:
    """Sort key of retries: the latest failure comes last; within one call by priority, then sequence."""
    return (task.failed or Moment(-1_000, 0), -task.priority, task.sequence)
