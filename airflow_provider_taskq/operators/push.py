"""Pushes tasks from a DAG."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import XComArg
from airflow.sdk import Asset, AssetAlias

from airflow_provider_taskq.assets.taskq import topic_asset
from airflow_provider_taskq.operators.base import TaskQOperator
from airflow_provider_taskq.operators.task_source import RendersTasks, TaskSource
from airflow_provider_taskq.queue import Insertion, NewTask

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

# The outlet of pushes to topics that are not known yet when the DAG is parsed.
ALIAS = AssetAlias("taskq")


class TaskQPushOperator(RendersTasks, TaskQOperator):
    """Pushes tasks to a topic, in one transaction: all of them, or in a try that fails, none.

    `tasks` is a list of identifiers, of dicts with the fields of `NewTask`, or of `NewTask` objects; or the output of
    another task (`upstream.output`); or a function, which may be a generator and may take names of the context
    (`def tasks(ds): ...`). Tasks are streamed, so a generator's million needs little memory. Identifiers and dicts in a
    list are templates; what a function or another task gave is not.

    Payloads stay out of Airflow: its metadata, rendered fields and logs see counts and identifiers. What a DAG
    passes by XCom or writes into `expand()` is stored by Airflow itself: for private payloads, give a function.

    A worker that dies between the commit and its report is run again by Airflow and then pushes again; where that
    matters, `insertion="SUPERSEDE"` makes the earlier copies that still wait redundant.

    With `emit_asset`, a push is an event of the asset `taskq://conn_id/topic`, for a DAG with
    `schedule=topic_asset(topic)`; its extra is what the operator returns. Where the topic is a template or mapped, the
    outlet is the alias `taskq`, and the event of that asset comes through it, unless nothing was pushed. Events of
    assets that the author names as `outlets` have the same extra.

    Returns `{"topic", "pushed", "first", "last"}`: the number of tasks, and the lowest and highest sequence.

    :param topic: the topic's name (templated).
    :param tasks: what to push (templated, see above).
    :param insertion: what becomes of older tasks of the same identifiers.
    :param create_topic: whether to create the topic, with the default policy, if there is none.
    :param emit_asset: whether to emit an event of the topic's asset.
    :param taskq_conn_id: the Airflow connection (templated).
    """

    template_fields: Sequence[str] = ("topic", "tasks", "taskq_conn_id")

    def __init__(
        self,
        *,
        topic: str,
        tasks: Iterable[str | NewTask | Mapping[str, Any]] | Callable[..., Iterable[Any]] | XComArg,
        insertion: Insertion | str = Insertion.APPEND,
        create_topic: bool = False,
        emit_asset: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.tasks = TaskSource(tasks)
        self.insertion = Insertion(insertion)
        self.create_topic = create_topic
        self.emit_asset = emit_asset
        if emit_asset:  # and only then: Airflow's first asset imports what every provider has for assets
            outlet = _outlet(topic, self.taskq_conn_id)
            if outlet not in self.outlets and ALIAS not in self.outlets:  # a mapped one has it by `partial`
                self.outlets = [*self.outlets, outlet]

    @classmethod
    def partial(cls, **kwargs: Any) -> "OperatorPartial":
        """Begins a mapped push, whose outlet Airflow has to know before it is mapped."""
        mapped: OperatorPartial = super().partial(**kwargs)
        given = mapped.kwargs
        if given.get("emit_asset"):
            outlet = _outlet(given.get("topic"), given.get("taskq_conn_id", "taskq_default"))
            given["outlets"] = [*(given.get("outlets") or ()), outlet]
        return mapped

    def execute(self, context: "Context") -> dict[str, Any]:
        """Pushes, and says how many."""
        with self.hook.transaction() as queue:
            if self.create_topic:
                queue.create_topic(self.topic)
            pushed = queue.push_stream(self.topic, self.tasks.tasks(context), self.insertion)
        self.log.info("Pushed %d tasks to topic %s.", pushed.count, self.topic)
        result = {"topic": self.topic, "pushed": pushed.count, "first": pushed.first, "last": pushed.last}
        self._describe_events(context, result)
        return result

    def _describe_events(self, context: "Context", result: dict[str, Any]) -> None:
        """Gives the events of the outlets their extra; Airflow emits them when the task has succeeded."""
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra.update(result)
            elif outlet == ALIAS and result["pushed"]:
                context["outlet_events"][outlet].add(topic_asset(self.topic, self.taskq_conn_id), extra=result)

    def _set_xcomargs_dependencies(self) -> None:
        """Makes tasks whose output stands in `tasks` upstream of this one, as Airflow does for plain fields."""
        super()._set_xcomargs_dependencies()
        XComArg.apply_upstream_relationship(self, self.tasks.given)


def _outlet(topic: Any, taskq_conn_id: Any) -> Asset | AssetAlias:
    """The topic's asset where the topic and the connection are known by now, else the alias."""
    known = all(isinstance(text, str) and "{{" not in text and "{%" not in text for text in (topic, taskq_conn_id))
    return topic_asset(topic, taskq_conn_id) if known else ALIAS
