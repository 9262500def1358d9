import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.exceptions import AirflowProviderDeprecationWarning

pytest.importorskip("airflow.providers.common.messaging")

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger

from airflow_provider_taskq.queues.taskq import TaskQMessageQueueProvider
from airflow_provider_taskq.triggers.event import TaskQEventTrigger
from tests.airflow.release_marks import CLAIMING

pytestmark = pytest.mark.promise("An event trigger ends a task only after its event is stored")


@pytest.mark.parametrize(
    "arguments",
    [{"min_tasks": 5}, pytest.param({"mode": "claim", "batch_size": 5}, marks=CLAIMING)],
    ids=str,
)
def test_a_message_queue_of_scheme_taskq_is_our_trigger(arguments: dict[str, Any]) -> None:
    trigger = MessageQueueTrigger(scheme="taskq", topic="work", **arguments)
    assert trigger.serialize() == TaskQEventTrigger(topic="work", **arguments).serialize()


@pytest.mark.parametrize(
    ("uri", "topic", "conn_id"),
    [
        ("taskq://other_db/work", "work", "other_db"),
        ("taskq:///work", "work", "taskq_default"),
        ("taskq://other_db/a%2Fb%20c", "a/b c", "other_db"),
    ],
)
def test_a_message_queue_may_be_named_by_a_uri(uri: str, topic: str, conn_id: str) -> None:
    with pytest.warns(AirflowProviderDeprecationWarning):
        trigger = MessageQueueTrigger(queue=uri, min_tasks=2)
    expected = TaskQEventTrigger(topic=topic, taskq_conn_id=conn_id, min_tasks=2)
    assert trigger.serialize() == expected.serialize()


@pytest.mark.parametrize("uri", ["taskq://conn", "taskq://conn/", "taskq://conn/a/b", "taskq://conn/a?mode=claim"])
def test_a_uri_without_a_topic_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="taskq://conn_id/topic"):
        TaskQMessageQueueProvider().trigger_kwargs(uri)


def test_uris_of_other_schemes_do_not_match() -> None:
    provider = TaskQMessageQueueProvider()
    assert not provider.queue_matches("kafka://host/topic")
    assert not provider.scheme_matches("kafka")


def test_without_the_messaging_provider_the_error_says_what_to_install(repository: Path) -> None:
    program = (
        "import sys; sys.modules['airflow.providers.common.messaging.providers.base_provider'] = None\n"
        "try:\n    import airflow_provider_taskq.queues.taskq\n"
        "except Exception as error:\n    print(type(error).__name__, error)"
    )
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=repository)
    assert "AirflowOptionalProviderFeatureException" in result.stdout
    assert "pip install 'apache-airflow-providers-common-messaging>=2'" in result.stdout
