"""A composite in a module of a user. Spark imports its functions by name."""

from dataclasses import dataclass

from airflow_provider_taskq.queue import Decision, Result, Task
from airflow_provider_taskq.worker import Batch, Composite

orders = Composite("orders", threads=4)


@dataclass
class Order:
    """A value that one step loads for a later step."""

    name: str


@orders.step()
def load(task: Task, batch: Batch) -> None:
    """Registers an order."""
    batch.register(Order, Order(task.identifier), task)


@orders.step(after=load)
def name_handler(task: Task, batch: Batch) -> Decision:
    """Names the handler."""
    return Decision(Result.SUCCESS, f"{orders.name}: {batch.require(Order, task).name}")
