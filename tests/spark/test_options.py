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
        ("held", {"fence": "-1"}, "option 'fence' must be a whole number of at least 1, not '-1'"),
        ("held", {"fence": ""}, "option 'fence' must be a whole number of at least 1, not ''"),
        ("held", {"partitions": "many"}, "option 'partitions' must be a whole number of at least 1, not 'many'"),
        ("held", {"partition": "4"}, "unknown option 'partition': use fence, owner, partitions, topic"),
        ("held", {"dsn": "postgresql://u:secret@h/d"}, "unknown option 'dsn'"),
        ("push", {"insertion": "UPSERT"}, "unknown insertion 'UPSERT': use one of APPEND"),
        ("push", {"owner": "me"}, "unknown option 'owner'"),
        ("push", {"batch": "3"}, "option 'batch' needs option 'stream'"),
        ("log", {"topic": ""}, "option 'topic' is missing"),
        ("log", {"after": "noon"}, "option 'after' must be a whole number of at least 0, not 'noon'"),
        ("log", {"owner": "me"}, "unknown option 'owner'"),
        ("log", {"maxTasksPerTrigger": "0"}, "must be a whole number" if ADMISSION_CONTROL else "needs"),
        ("tasks", {"state": "READY"}, "unknown option 'state'"),
        ("tasks", {"payload": "yes"}, "option 'payload' must be true or false"),
    ],
)
def test_an_invalid_option_is_refused_by_name(kind: str, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(TaskQueueError, match=sentence) as refused:
        parse(kind, **options)
    assert "secret" not in str(refused.value)


BIGINT, INT = 2**63 - 1, 2**31 - 1
NUMBERS: list[tuple[str, str, int, dict[str, str]]] = [
    ("held", "fence", BIGINT, {}),
    ("held", "partitions", INT, {}),
    ("tasks", "partitions", INT, {}),
    ("push", "batch", BIGINT, {"stream": "s"}),
    ("log", "after", BIGINT, {}),
    *([("log", "maxTasksPerTrigger", BIGINT, {})] if ADMISSION_CONTROL else []),
]


@pytest.mark.parametrize(("kind", "name", "most", "others"), NUMBERS)
def test_a_number_beyond_its_type_in_the_database_is_refused_by_name(
    kind: str, name: str, most: int, others: dict[str, str]
) -> None:
    parse(kind, **others, **{name: str(most)})
    for text in (str(most + 1), "9" * 20, "9" * 5000):  # Python converts no text of more than 4,300 digits
        with pytest.raises(TaskQueueError, match=f"'{name}' must be a whole number of at most {most},") as refused:
            parse(kind, **others, **{name: text})
        assert len(str(refused.value)) < 200
