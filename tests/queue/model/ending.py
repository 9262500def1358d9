"""The model of leases and of the ends of tasks."""

from collections.abc import Callable, Mapping
from datetime import timedelta

from airflow_provider_taskq.queue import Decision, NotHeld, Owner, Result, State
from tests.queue.model.tasks import Holdings, ModelOwner, ModelTask, ModelTopic, Moment, hours


class Ending(Holdings):
    """The verbs of owners, and the ends of their tasks."""

    def register(self, name: str, fence: int, lease: int) -> bool:
        """Registers a name. Returns whether the name held tasks, which it takes over."""
        assert all(fence > other.fence for other in self.owners.values())
        now = self.tick()
        self.owners[name] = ModelOwner(fence, lease, now.plus(lease), now)
        return bool(self.held_by(name))

    def heartbeat(self, owner: Owner) -> None:
        known = self.leaseholder(owner)
        known.seen = self.tick()
        known.until = known.seen.plus(known.lease)

    def release(self, owner: Owner) -> int:
        known = self.owners.get(owner.name)
        if known is None or known.gone or known.fence != owner.fence:
            return 0
        known.gone, known.seen = True, self.tick()
        held = self.held_by(owner.name)
        for task in held:
            self._give_back(task)
        return len(held)

    def running(self, within: int | None) -> list[str]:
        """The owners whose lease has not lapsed."""
        return sorted(
            name
            for name, known in self.owners.items()
            if not known.gone and known.until > self.now and (within is None or known.seen.plus(within) >= self.now)
        )

    def purge_owners(self, older_than: int) -> int:
        """Removes the owners without a running lease that no task names."""
        reported = {task.owner for task in self.tasks.values()}
        idle = [
            name
            for name, known in self.owners.items()
            if (known.gone or known.until < self.now)
            and known.seen.plus(older_than) <= self.now
            and name not in reported
        ]
        for name in idle:
            del self.owners[name]
        return len(idle)

    def expire(self, grace: int) -> int:
        return self._end_lapsed(grace, lambda _: True)

    def _take_back(self, topic: str) -> bool:
        """Ends the lapsed leases of owners that hold tasks of a topic, for a poll of it that found nothing."""
        if self.topics[topic].paused:
            return False
        return self._end_lapsed(0, lambda held: any(task.topic == topic for task in held)) > 0

    def _end_lapsed(self, grace: int, concerned: Callable[[list[ModelTask]], bool]) -> int:
        now = self.tick()
        taken = 0
        for name, known in self.owners.items():
            held = self.held_by(name)
            if known.gone or known.until.plus(grace) >= now or not concerned(held):
                continue
            for task in held:
                self._crash(task, len(held))
            taken += len(held)
            known.gone = True
        return taken

    def complete(self, owner: Owner, decisions: Mapping[int, Decision]) -> None:
        if not decisions:
            return
        self.leaseholder(owner)
        held = {task.sequence: task for task in self.held_by(owner.name)}
        if not decisions.keys() <= held.keys():
            raise NotHeld(owner.name)
        now = self.tick()
        for topic in {held[sequence].topic for sequence in decisions}:
            of_topic = {held[n]: decision for n, decision in decisions.items() if held[n].topic == topic}
            self._end_all(self.topics[topic], of_topic, now)

    def _end_all(self, topic: ModelTopic, decisions: Mapping[ModelTask, Decision], now: Moment) -> None:
        """Ends all tasks of one topic in a call, and judges their retries together."""
        retried = {task for task in decisions if task.attempt > 1}
        failed = {task for task, decision in decisions.items() if self._decide(topic, task, decision, now)}
        if not topic.policy.retry.probe:
            return
        if failed and not topic.failing:
            topic.failing, topic.failed, topic.probes, topic.promoted = True, None, set(), 0
        elif failed:
            if any(task.sequence in topic.probes for task in failed):
                topic.failed = now
        elif any(decisions[task].result is not Result.FAILURE for task in retried):
            topic.failing = False

    def _decide(self, topic: ModelTopic, task: ModelTask, decision: Decision, now: Moment) -> bool:
        """Applies a decision. Returns whether it is a failure that counts."""
        ttl = task.ttl
        if ttl is None and topic.policy.ttl is not None:
            ttl = hours(topic.policy.ttl)
        young = ttl is not None and task.created.plus(ttl) > now
        if decision.result is Result.FAILURE and young:
            self._put_back(task, task.due, counted=False)
        elif decision.delay is not None:
            self._put_back(task, now.plus(hours(decision.delay)), counted=False)
        elif decision.result is Result.FAILURE and _has_another_try(topic, task.attempt):
            due = now.plus(_back_off(topic, task.attempt))
            if topic.policy.retry.horizon is not None:
                due = min(due, task.created.plus(hours(topic.policy.retry.horizon)))
            task.error = str(decision.error) if decision.error else None
            task.failed = now
            self._put_back(task, due, counted=True)
        else:
            task.state, task.completed = State(decision.result + 3), now
            task.output, task.error = decision.message, str(decision.error) if decision.error else task.error
        return decision.result is Result.FAILURE and not young

    def _put_back(self, task: ModelTask, due: Moment, *, counted: bool) -> None:
        task.state, task.owner, task.due = State.READY, None, due
        task.attempt -= not counted

    def _give_back(self, task: ModelTask) -> None:
        """Makes a task READY in its old place."""
        self._put_back(task, task.place, counted=False)

    def _crash(self, task: ModelTask, held: int) -> None:
        policy = self.topics[task.topic].policy
        owner = task.owner
        task.crashes += 1
        if policy.on_expiry == "redeliver" and (held > 1 or task.crashes < policy.max_crashes):
            self._give_back(task)
            task.redelivered = True
            left = policy.max_crashes - task.crashes
            most = 1 if left <= 1 else min(held // 2, int(held ** ((left - 1) / left) + 1e-9))
            most = max(1, most, -(-held // 100))
            task.max_claim = min(most, task.max_claim or most)
            return
        task.attempt -= 1
        task.state, task.owner = State.EXPIRED, owner
        if policy.on_expiry == "redeliver":
            task.state, task.completed, task.error = State.FAILED, self.now, "lease"  # the reason speaks of it


def _has_another_try(topic: ModelTopic, attempts: int) -> bool:
    retry = topic.policy.retry
    waited = sum(_back_off(topic, earlier) for earlier in range(1, attempts))
    return attempts < retry.max_attempts and (
        retry.max_elapsed is None or waited * timedelta(hours=1) < retry.max_elapsed
    )


def _back_off(topic: ModelTopic, attempts: int) -> int:
    """min(base * factor ** (attempts before), max_delay)."""
    retry = topic.policy.retry
    delay: int = hours(retry.base) * int(retry.factor) ** (attempts - 1)
    return min(delay, hours(retry.max_delay))
