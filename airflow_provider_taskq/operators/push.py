"""The operator that pushes tasks to a topic."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import XComArg
from airflow.sdk import Asset, AssetAlias

from airflow_provider_taskq.assets.taskq import topic_asset
from airflow_provider_taskq.operators.base import TaskQBaseOperator
from airflow_provider_taskq.operators.task_source import TaskSource, TaskSourceTemplater
from airflow_provider_taskq.queue import Insertion, NewTask
from airflow_provider_taskq.queue.encoding import JsonDefault

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

# The outlet of a push whose topic is not known when the DAG is parsed.
ALIAS = AssetAlias("taskq")


class TaskQPushOperator(TaskSourceTemplater, TaskQBaseOperator):
    """Pushes tasks to a topic in one transaction: a try that fails pushes none.

    `tasks` is one of:

    - a list of identifiers, of dicts with the fields of `NewTask`, or of `NewTask` objects. Identifiers and dicts are
      templates;
    - the output of another task (`upstream.output`);
    - a function or generator function, which may take names of the context (`def tasks(ds): ...`). The operator streams
      its tasks, so a million tasks need little memory.

    Airflow's metadata database, rendered fields and logs get counts and identifiers, and no payloads. But Airflow
    stores the values that a DAG passes by XCom or writes into `expand()`. For private payloads, give a function.

    If a worker dies between the commit and its report, Airflow runs the task again, and the task pushes again. With
    `insertion="SUPERSEDE"` the second push makes the waiting tasks of the first one redundant.

    With `emit_asset`, a push emits an event of the asset `taskq://conn_id/topic`, for a DAG with
    `schedule=topic_asset(topic)`. The extra of the event is the operator's return value. If the topic is a template or
    mapped, the outlet is the alias `taskq`, which emits an event only if tasks were pushed. Events of other assets in
    `outlets` have the same extra.

    Returns `{"topic", "pushed", "first", "last"}`: the number of tasks, and the lowest and highest sequence.

    :param topic: the topic's name (templated).
    :param tasks: the tasks (templated, see above).
    :param insertion: how the push treats older tasks of the same identifiers.
    :param create_topic: whether to create a missing topic with the default policy.
    :param emit_asset: whether to emit an event of the topic's asset.
    :param json_default: converts an object in a payload that JSON does not have, such as a datetime, as that of
        `json.dumps`; for example `str`.
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
        json_default: JsonDefault | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.tasks = TaskSource(tasks)
        self.insertion = Insertion(insertion)
        self.create_topic = create_topic
        self.emit_asset = emit_asset
        self.json_default = json_default
        if emit_asset:  # only then: the first Asset that a process creates imports the asset modules of all providers
            outlet = _outlet(topic, self.taskq_conn_id)
            if outlet not in self.outlets and ALIAS not in self.outlets:  # `partial` may have added it already
                self.outlets = [*self.outlets, outlet]

    @classmethod
    def partial(cls, **kwargs: Any) -> "OperatorPartial":
        """Add the outlet to a mapped operator, because Airflow needs outlets before it maps."""
        mapped: OperatorPartial = super().partial(**kwargs)
        given = mapped.kwargs
        if given.get("emit_asset"):
            outlet = _outlet(given.get("topic"), given.get("taskq_conn_id", "taskq_default"))
            given["outlets"] = [*(given.get("outlets") or ()), outlet]
        return mapped

    def execute(self, context: "Context") -> dict[str, Any]:
        """Push the tasks, and return their number and the range of their sequences."""
        with self.hook.transaction() as queue:
            if self.create_topic:
                queue.create_topic(self.topic)
            pushed = queue.push_stream(self.topic, self.tasks.tasks(context), self.insertion)
        self.log.info("Pushed tasks: topic=%s count=%d", self.topic, pushed.count)
        result = {"topic": self.topic, "pushed": pushed.count, "first": pushed.first, "last": pushed.last}
        self._set_event_extras(context, result)
        return result

    def _set_event_extras(self, context: "Context", result: dict[str, Any]) -> None:
        """Set the extra of the events, which Airflow emits after the task has succeeded."""
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra.update(result)
            elif outlet == ALIAS and result["pushed"]:
                context["outlet_events"][outlet].add(topic_asset(self.topic, self.taskq_conn_id), extra=result)

    def _set_xcomargs_dependencies(self) -> None:
        """Add the tasks whose output is in `tasks` as upstream tasks, as Airflow does for plain fields."""
        super()._set_xcomargs_dependencies()
        XComArg.apply_upstream_relationship(self, self.tasks.source)


def _outlet(topic: Any, taskq_conn_id: Any) -> Asset | AssetAlias:
    """Return the topic's asset, or the alias if the topic or the connection is a template."""
    known = all(isinstance(text, str) and "{{" not in text and "{%" not in text for text in (topic, taskq_conn_id))
    return topic_asset(topic, taskq_conn_id) if known else ALIAS
