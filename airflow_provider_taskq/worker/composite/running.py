"""One batch through the steps of a composite: each when those before it are done, with the tasks that are continued."""

from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from functools import reduce

from airflow_provider_taskq.queue import Decision, Result, Task
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.composite.invoking import invoked, of_context, rewritten
from airflow_provider_taskq.worker.composite.steps import Definition, Step
from airflow_provider_taskq.worker.composite.threads import Threads

OwnDecisions = dict[Task, Decision]

_SUCCESS = Decision(Result.SUCCESS)


@dataclass(slots=True)
class Run:
    """What the steps that are done have decided, each on the tasks that it saw."""

    definition: Definition
    batch: Batch
    threads: Threads
    stopped: Callable[[], bool]
    done: dict[str, OwnDecisions] = field(default_factory=dict)

    def decisions(self) -> Mapping[Task, Decision]:
        """The decisions on all tasks of the batch: those of all steps that saw a task, and of the contexts, merged."""
        self._run_steps()
        merged = {task: self._merged(task) for task in self.batch.tasks}
        found = [of_context(context, self.batch, merged) for context in self.definition.contexts]
        found.append(rewritten(self.batch, self.definition.rewrites))
        for added in found:
            merged |= {task: merged[task].merge(decision) for task, decision in added.items()}
        return merged

    def _run_steps(self) -> None:
        """Starts each step as soon as it can be, until all are done.

        The only one that can be runs in this thread, unless the caller's executor runs the steps.
        """
        left = {step.name: step for step in self.definition.steps}
        running: dict[Future[OwnDecisions], str] = {}
        while left or running:
            ready = self._ready(left)
            if len(ready) == 1 and not running and self.threads.is_own:
                ((step, tasks),) = ready
                self.done[step.name] = self._invoked(step, tasks)
                continue
            running |= {self.threads.start(self._invoked, step, tasks): step.name for step, tasks in ready}
            ended = wait(running, return_when=FIRST_COMPLETED).done
            for future in ended:
                self.done[running.pop(future)] = future.result()

    def _ready(self, left: dict[str, Step]) -> list[tuple[Step, list[Task]]]:
        """Takes the steps that can begin, each with its tasks; one that no task enters is done without being called."""
        ready: list[tuple[Step, list[Task]]] = []
        for step in list(left.values()):  # in their order, so that one that is passed over lets later ones be seen
            if all(name in self.done for name in step.after):
                del left[step.name]
                if tasks := self._entering(step):
                    ready.append((step, tasks))
                else:
                    self.done[step.name] = {}
        return ready

    def _entering(self, step: Step) -> list[Task]:
        """The tasks that every step before this one has seen and continued: a merged decision continues if all do."""
        before = [self.done[name] for name in step.after]
        return [task for task in self.batch.tasks if all(_continues(each.get(task)) for each in before)]

    def _invoked(self, step: Step, tasks: list[Task]) -> OwnDecisions:
        if self.stopped():
            raise InterruptedError(f"composite {self.definition.name!r} was closed before its step {step.name!r}")
        return invoked(step, tasks, self.batch, self.threads, self.definition.around)

    def _merged(self, task: Task) -> Decision:
        """What the steps decided on one task; of two with one result the later step's message stands."""
        own = [decisions[task] for step in self.definition.steps if task in (decisions := self.done[step.name])]
        return reduce(_merge, reversed(own)) if own else _SUCCESS


def _merge(later: Decision, earlier: Decision) -> Decision:
    """Two decisions as one; most are one and the same plain SUCCESS."""
    return later if later is earlier else later.merge(earlier)


def _continues(decision: Decision | None) -> bool:
    return decision is not None and bool(decision.continued)
