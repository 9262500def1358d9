"""Features that an older Airflow lacks, and their errors. `make test-matrix` runs these tests on each release."""

import runpy
from pathlib import Path

import pytest
from airflow import __version__
from airflow.providers.common.compat.sdk import AirflowException
from airflow.sdk import DAG

from airflow_provider_taskq.triggers.event import has_shared_streams

pytestmark = pytest.mark.promise("A feature that an older Airflow lacks is refused by name")

RELEASE = tuple(int(part) for part in __version__.split(".")[:2])
EXAMPLE = Path(__file__).parents[2] / "example_dags" / "taskq_events.py"
MESSAGE = (
    r"mode='claim'\) needs the shared streams of Airflow 3\.3 or later: use mode='peek' here,"
    r" and let the DAG claim with TaskQSensor\(claim=n\)\.$"
)
BELOW_3_3 = pytest.mark.skipif(RELEASE >= (3, 3), reason="the error of a release before 3.3")

CLAIMING_DAG = """
from airflow.sdk import DAG, Asset, AssetWatcher
from airflow_provider_taskq.triggers.event import TaskQEventTrigger

claims = TaskQEventTrigger(topic="signups", mode="claim")
with DAG("claiming", schedule=[Asset("signups", watchers=[AssetWatcher(name="claimed", trigger=claims)])]):
    pass
"""


def test_airflow_is_a_supported_release() -> None:
    assert RELEASE >= (3, 1)


def test_events_can_be_claimed_from_airflow_3_3_on() -> None:
    assert has_shared_streams() == (RELEASE >= (3, 3))


@BELOW_3_3
def test_a_dag_file_that_claims_is_refused_when_it_is_parsed(tmp_path: Path) -> None:
    """Airflow shows the message as an import error, and no trigger fails later in the triggerer."""
    file = tmp_path / "claiming.py"
    file.write_text(CLAIMING_DAG, encoding="utf-8")
    with pytest.raises(AirflowException, match=MESSAGE):
        runpy.run_path(str(file))


@BELOW_3_3
def test_a_message_queue_that_claims_has_the_same_error() -> None:
    queues = pytest.importorskip("airflow.providers.common.messaging.triggers.msg_queue")
    with pytest.raises(AirflowException, match=MESSAGE):
        queues.MessageQueueTrigger(scheme="taskq", topic="work", mode="claim").serialize()


def test_the_example_of_events_leaves_out_the_dag_that_this_airflow_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    enter = DAG.__enter__

    def entered(dag: DAG) -> DAG:
        made.append(dag.dag_id)
        return enter(dag)

    monkeypatch.setattr(DAG, "__enter__", entered)
    runpy.run_path(str(EXAMPLE))
    assert made == (["taskq_wake", "taskq_each"] if RELEASE >= (3, 3) else ["taskq_wake"])
