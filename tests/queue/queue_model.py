"""The queue as the contract tells it, in memory: what test_model holds the real one against."""

from dataclasses import dataclass, field

from airflow_provider_taskq.queue import Insertion, Order, Owner, Result, State

MAX_ATTEMPTS, MAX_CRASHES = 2, 2
WAITING = (State.READY,)
ENDED = (State.EXPIRED, State.FAILED, State.SUSPENDED, State.FILTERED, State.SUCCEEDED)


@dataclass
class ModelTask:
    """What the contract says a task is."""

    sequence: int
    identifier: str
    state: State
    priority: int
    descent: State | None = None
    holder: str | None = None
    attempt: int = 0
    crashes: int = 0
    redelivered: bool = False
    pushed: int = 0  # the turn in which it was pushed: its place
    due: int = 0  # the same, or the turn in which it failed


@dataclass
class ModelOwner:
    """A lease: held under a fence, lapsed or not, or gone."""

    owner: Owner
    lapsed: bool = False
    gone: bool = False


@dataclass
class Model:
    """The whole queue in memory."""

    tasks: dict[int, ModelTask] = field(default_factory=dict)
    owners: dict[str, ModelOwner] = field(default_factory=dict)
    turn: int = 0

    def held(self, name: str) -> list[ModelTask]:
        return [task for task in self.tasks.values() if task.state is State.ACTIVE and task.holder == name]

    def working(self) -> list[str]:
        """The owners that hold tasks."""
        return [name for name in self.owners if self.held(name)]

    def ready(self, order: Order = Order.FIRST_IN_FIRST_OUT) -> list[ModelTask]:
        down = -1 if order is Order.LAST_IN_FIRST_OUT else 1
        waiting = [task for task in self.tasks.values() if task.state is State.READY]
        return sorted(waiting, key=lambda task: (-task.priority, down * task.due, down * task.sequence))

    def displace(self, identifier: str, insertion: Insertion) -> None:
        for task in list(self.tasks.values()):
            if task.identifier != identifier or task.state is State.ACTIVE:
                continue
            if insertion is Insertion.DELETE:
                del self.tasks[task.sequence]
            elif task.state in WAITING or (insertion is Insertion.REPLACE and task.state in ENDED):
                task.descent, task.state = task.state, State.REDUNDANT

    def give_back(self, task: ModelTask) -> None:
        task.state, task.holder, task.due = State.READY, None, task.pushed
        task.attempt -= 1

    def complete(self, task: ModelTask, result: Result) -> None:
        if result is Result.FAILURE and task.attempt < MAX_ATTEMPTS:
            self.turn += 1
            task.state, task.holder, task.due = State.READY, None, self.turn
        else:
            task.state = State(result + 3)

    def crash(self, task: ModelTask) -> None:
        last = task.crashes + 1 >= MAX_CRASHES
        self.give_back(task)
        task.crashes += 1
        if last:
            task.state = State.FAILED
        else:
            task.redelivered = True
