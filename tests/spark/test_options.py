"""The options of the format, which are checked when Spark plans a read or a write."""

from collections.abc import Callable, Mapping

import pytest

from airflow_provider_taskq.queue import TaskQueueError
from airflow_provider_taskq.spark.options import HeldOptions, PushOptions
from airflow_provider_taskq.spark.readers import TasksOptions
from airflow_provider_taskq.spark.streams import ADMISSION_CONTROL, LogOptions

pytestmark = pytest.mark.promise("An error is one sentence that names the object and the remedy")


Options = Mapping[str, str]
NEEDED: dict[str, dict[str, str]] = {
    "held": {"topic": "t", "owner": "o", "fence": "1"},
    "push": {"topic": "t"},
    "log": {"topic": "t"},
    "tasks": {"topic": "t"},
}
PARSERS: dict[str, Callable[[Options], object]] = {
    "held": lambda options: HeldOptions.parse(options, "held"),
    "push": PushOptions.parse,
    "log": LogOptions.parse,
    "tasks": TasksOptions.parse,
}


def parse(kind: str, **options: str) -> object:
    return PARSERS[kind]({"mode": kind, **NEEDED[kind], **options})


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        ("held", {"mode": "tasks"}, "to read, set option mode to 'held', not 'tasks'"),
        ("held", {"owner": ""}, "option 'owner' is missing"),
        ("held", {"fence": "-1"}, "option 'fence' must be a whole number from 1 to"),
        ("held", {"fence": ""}, "option 'fence' must be a whole number from 1 to"),
        ("held", {"partitions": "many"}, "option 'partitions' must be a whole number from 1 to"),
        ("held", {"partition": "4"}, "unknown option 'partition': use fence, owner, partitions, topic"),
        (
            "held",
            {"dsn": "postgresql://u:secret@h/d"},
            "option 'dsn' is refused, as Spark shows options: the",
        ),
        ("push", {"URL": "jdbc:postgresql:secret"}, "option 'url' is refused.* that of TASKQ_DSN, TASKQ_DSN_FILE or"),
        ("push", {"insertion": "UPSERT"}, "unknown insertion 'UPSERT': use one of APPEND"),
        ("push", {"owner": "me"}, "unknown option 'owner'"),
        ("push", {"batch": "3"}, "option 'batch' needs option 'stream'"),
        ("log", {"topic": ""}, "option 'topic' is missing"),
        ("log", {"after": "noon"}, "option 'after' must be a whole number from 0 to"),
        ("log", {"owner": "me"}, "unknown option 'owner'"),
        ("log", {"maxTasksPerTrigger": "0"}, "must be a whole number" if ADMISSION_CONTROL else "needs"),
        ("tasks", {"state": "READY"}, "unknown option 'state'"),
        ("tasks", {"payload": "yes"}, "option 'payload' must be true or false"),
        ("held", {"fence": str(2**63)}, f"'fence' must be a whole number from 1 to {2**63 - 1},"),
        ("held", {"partitions": str(2**31)}, f"'partitions' must be a whole number from 1 to {2**31 - 1},"),
        ("tasks", {"partitions": str(2**31)}, f"'partitions' must be a whole number from 1 to {2**31 - 1},"),
        ("push", {"batch": str(2**63), "stream": "s"}, f"'batch' must be a whole number from 0 to {2**63 - 1},"),
        ("log", {"after": str(2**63)}, f"'after' must be a whole number from 0 to {2**63 - 1},"),
        ("log", {"after": "9" * 5000}, "at most"),  # Python converts no text of more than 4,300 digits
    ],
)
def test_an_invalid_option_is_refused_by_name(kind: str, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(TaskQueueError, match=sentence) as refused:
        parse(kind, **options)
    assert "secret" not in str(refused.value)
    assert len(str(refused.value)) < 200
