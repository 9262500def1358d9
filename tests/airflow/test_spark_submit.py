"""TaskQSparkSubmitOperator: the arguments that it passes to Spark, and the end of the drained tasks."""

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, Stats
from airflow.sdk import DAG
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_taskq.operators.spark_submit import WORK, TaskQSparkSubmitOperator
from airflow_provider_taskq.queue import Condition, FailureLimit, LeaseLost, State, TaskQueue, UnknownTopic
from airflow_provider_taskq.queue.claims import Claim
from airflow_provider_taskq.spark import application_path
from tests.airflow.conftest import context_of
from tests.airflow.test_metrics import Receiver, receive
from tests.spark.cluster import python_without_us
from tests.spark.session import SHORT_LIVED

pytestmark = pytest.mark.promise("`TaskQSparkSubmitOperator` drains with Spark, and fails as the drain does")

PROGRAMS = Path(__file__).parents[1] / "spark" / "programs"


def drain(**given: Any) -> TaskQSparkSubmitOperator:
    """Return the operator with rendered fields."""
    arguments: dict[str, Any] = {"task_id": "drain", "topic": "work", **given}
    if not set(WORK) & set(given):
        arguments["transform"] = "transforms:succeed"
    operator = TaskQSparkSubmitOperator(**arguments)
    operator.render_template_fields(context_of("drain"))
    return operator


def test_the_drain_accepts_the_arguments_of_the_operator() -> None:
    pytest.importorskip("pyspark")
    from airflow_provider_taskq.spark.application import _parser

    operator = drain(
        each="rules:decide",
        options={"day": "{{ ds }}", "note": "a=b c"},
        size="{{ 10 }}",
        rounds="all",
        budget="{{ none }}",
        deadline=timedelta(minutes=1),
        lease="90.5",
        condition="SINGULAR_BY_IDENTIFIER",
        partitions=3,
        max_failed=0.05,
    )
    assert operator.application == application_path()
    parsed = _parser().parse_args(operator._arguments("-me"))
    assert (parsed.topic, parsed.owner, parsed.each, parsed.transform) == ("work", "-me", "rules:decide", None)
    assert parsed.option == ["day=2013-01-01", "note=a=b c"]
    assert (parsed.size, parsed.rounds, parsed.budget, parsed.partitions) == (10, None, None, 3)
    assert FailureLimit.of(parsed.max_failed) == FailureLimit(share=0.05)
    assert _parser().parse_args(drain(max_failed=0)._arguments("me")).max_failed == "0"
    limits = [drain(max_undecided=each)._arguments("me") for each in (0, "10", None)]
    assert [_parser().parse_args(each).max_undecided for each in limits] == [0, 10, None]
    assert _parser().parse_args(drain(max_failed="{{ none }}")._arguments("me")).max_failed is None
    assert (parsed.deadline, parsed.lease) == (timedelta(minutes=1), timedelta(seconds=91))
    assert parsed.condition is Condition.SINGULAR_BY_IDENTIFIER
    moment = datetime(2013, 1, 1, tzinfo=UTC)
    assert _parser().parse_args(drain(deadline=moment)._arguments("me")).deadline == moment
    for lease in ("5m", "PT5M", 300, timedelta(minutes=5)):
        assert _parser().parse_args(drain(lease=lease)._arguments("me")).lease == timedelta(minutes=5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"transform": "a:b", "each": "a:b"}, "one of transform, each, in_arrow, in_pandas"),
        ({"transform": None}, "one of transform, each, in_arrow, in_pandas"),
        ({"application_args": ["--topic", "other"]}, "application_args"),
        ({"topic": None}, "either a topic or a claim"),
        ({"claim": {"fence": 1}}, "either a topic or a claim"),
        ({"env_vars": {"TASKQ_DSN": "postgresql://me:sesame@host/db"}}, "use TASKQ_DSN_FILE"),
        ({"conf": {"spark.executorEnv.TASKQ_DSN": "postgresql://me:sesame@host/db"}}, "use TASKQ_DSN_FILE"),
    ],
)
def test_contradicting_arguments_are_refused_when_the_dag_is_parsed(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        TaskQSparkSubmitOperator(**{"task_id": "drain", "topic": "work", "transform": "a:b", **given})
    assert "sesame" not in str(refused.value)


@pytest.mark.usefixtures("airflow_connection", "queue")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("env_vars", "{{ {'TASKQ_DSN': 'postgresql://me:sesame@host/db'} }}"),
        ("conf", "{{ {'spark.yarn.appMasterEnv.TASKQ_DSN': 'postgresql://me:sesame@host/db'} }}"),
    ],
)
def test_a_dsn_in_a_rendered_argument_is_refused_before_spark_is_started(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    given: dict[str, Any] = {name: text}
    operator = TaskQSparkSubmitOperator(task_id="drain", topic="work", transform="a:b", **given)
    context = context_of("drain")
    with DAG("native", schedule=None, render_template_as_native_obj=True) as operator.dag:
        operator.render_template_fields(context)
    with pytest.raises(ValueError, match=f"TASKQ_DSN in {name} would be visible: use TASKQ_DSN_FILE") as refused:
        operator.execute(context)
    assert "sesame" not in str(refused.value)


def test_the_drain_of_a_claim_names_its_owner_fence_and_topic() -> None:
    pytest.importorskip("pyspark")
    from airflow_provider_taskq.spark.application import _parser

    operator = drain(topic=None, claim={"topic": "work", "owner": "me", "fence": 7, "claimed": 2}, lease=None)
    claim = Claim.parse(operator.claim)
    operator.topic = claim.topic
    parsed = _parser().parse_args(operator._arguments(claim.owner, claim))
    assert (parsed.topic, parsed.owner, parsed.claim, parsed.budget, parsed.lease) == ("work", "me", 7, None, None)


@pytest.fixture
def claim(queue: TaskQueue) -> dict[str, Any]:
    """Claim three of four tasks as a gate does; the first one cannot be delivered."""
    queue.push("work", ["bad", "b", "c", "d"])
    owner = queue.register("dag/run/gate/-1", timedelta(minutes=20))
    claimed = queue.claim("work", owner, 3)
    return {"topic": "work", "owner": owner.name, "fence": owner.fence, "claimed": claimed}


@pytest.mark.usefixtures("airflow_connection")
def test_a_claim_that_a_later_one_replaced_is_refused_before_spark_is_started(
    queue: TaskQueue, claim: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    later = queue.register(claim["owner"])
    with pytest.raises(LeaseLost, match=f"a later registration of the same owner, fence {later.fence}"):
        drain(topic=None, claim=claim).execute(context_of("drain"))
    assert queue.heartbeat(later).fence == later.fence
    with pytest.raises(UnknownTopic, match="nothing"):
        drain(topic="nothing").execute(context_of("drain"))


@pytest.mark.slow
@pytest.mark.own_database
@pytest.mark.usefixtures("spark_submit")
def test_a_claim_is_drained_by_its_fence_and_its_report_arrives_although_the_output_of_the_driver_does_not(
    dsn: str,
    queue: TaskQueue,
    claim: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """In the cluster modes the submitter does not see the output of the driver. The report decides on max_failed."""
    silent = tmp_path / "spark-submit"
    silent.write_text(f'#!/bin/sh\nexec {shutil.which("spark-submit")} "$@" >/dev/null 2>&1\n')
    silent.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    operator = drain(topic=None, claim=str(claim), each="transforms:reject_bad", rounds="all", max_failed="20%")
    with pytest.raises(AirflowFailException) as failed:
        executed(operator)
    assert "1 of 3 tasks that ended in topic 'work' failed, max_failed allows 20 % of them" in str(failed.value)
    assert "bad (sequence 1): ValueError: no mailbox for bad" in str(failed.value)
    assert states(queue) == {"READY": 1, "FAILED": 1, "SUCCEEDED": 2}
    report = executed(drain(topic=None, claim=claim, transform="transforms:stumble"))  # it has ended: no Spark starts
    assert (report["resumed"], report["claimed"], report["decided"], report["failed"]) == (3, 0, 3, 1)
    shown = "".join(capfd.readouterr()) + "".join(str(getattr(operator, field)) for field in operator.template_fields)
    assert str(conninfo_to_dict(dsn)["password"]) not in shown
    assert "TASKQ_DSN" not in os.environ


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.own_database
@pytest.mark.usefixtures("spark_submit")
@pytest.mark.promise("A drain that ends with undecided tasks says so, and fails if max_undecided is exceeded")
def test_a_drain_with_undecided_tasks_fails_with_retries_unless_max_undecided_allows_them(queue: TaskQueue) -> None:
    queue.push("work", ["bad", "good"])
    with pytest.raises(AirflowException, match="1 tasks of topic 'work' are undecided") as failed:
        executed(drain(each="transforms:decide_good"))
    assert not isinstance(failed.value, AirflowFailException)  # the retry gets the task again
    assert states(queue) == {"READY": 1, "SUCCEEDED": 1}
    assert executed(drain(each="transforms:decide_good", max_undecided="{{ none }}"))["undecided"] == 1


def states(queue: TaskQueue) -> dict[str, int]:
    """Count the tasks of topic `work` by state."""
    return {state.name: count.count for state, count in queue.count("work")["work"].items()}


def test_all_hosts_of_the_connection_reach_the_driver(
    queue: TaskQueue, airflow_connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = queue.conn.info
    given = {"conn_type": "taskq", "host": f"localhost,{info.host}", "port": info.port, "schema": info.dbname}
    given |= {"login": info.user, "password": info.password}
    monkeypatch.setenv(f"AIRFLOW_CONN_{airflow_connection.upper()}", json.dumps(given))
    _, variables = drain(topic="work")._prepare(None)
    resolved = conninfo_to_dict(variables["TASKQ_DSN"] or "")
    assert (resolved["host"], "hostaddr" in resolved) == (given["host"], False)
    assert resolved["port"] == str(info.port)


def local_spark() -> dict[str, str]:
    """Return the environment for a local Spark of one core: its connection, and the path of spark-submit."""
    home = find_spec("pyspark")
    assert home is not None
    assert home.origin is not None
    if not Path(home.origin).with_name("jars").exists():
        pytest.skip("this environment has the client of Spark only")
    return {
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[1]"}),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": f"{PROGRAMS}:{PROGRAMS.parents[2]}",
        "SPARK_HOME": str(Path(home.origin).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **SHORT_LIVED,
    }


@pytest.fixture
def spark_submit(monkeypatch: pytest.MonkeyPatch, airflow_connection: str) -> str:
    """Set up a connection to a local Spark and the path of spark-submit; return the queue's connection."""
    for variable, value in local_spark().items():
        monkeypatch.setenv(variable, value)
    monkeypatch.delenv("TASKQ_DSN", raising=False)
    return airflow_connection


class Running:
    """Executes an operator in a thread."""

    def __init__(self, operator: TaskQSparkSubmitOperator) -> None:
        self.operator = operator
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._execute)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the operator as Airflow does, unless it has ended."""
        if self._thread.is_alive():
            self.operator.on_kill()
        self._thread.join(120)
        close_output(self.operator)

    def _execute(self) -> None:
        try:
            self.operator.execute(context_of("drain"))
        except BaseException as error:  # noqa: BLE001  the test reads it
            self.error = error

    def wait(self, happened: Callable[[], bool]) -> None:
        """Check until a condition holds while the operator executes."""
        wait_until(lambda: happened() or not self._thread.is_alive())
        assert self._thread.is_alive(), self.error


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.own_database
@pytest.mark.usefixtures("spark_submit")
def test_the_next_try_drains_the_tasks_of_a_killed_try_with_the_shipped_package(
    dsn: str,
    queue: TaskQueue,
    conn: psycopg.Connection[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
    receiver = Receiver()
    receive(Stats, receiver, monkeypatch)
    queue.create_topic("next")
    queue.push("work", [f"item-{number}" for number in range(20)])
    gate = tmp_path / "gate"
    waiting = {"transform": "transforms:wait_and_follow", "options": {"gate": str(gate)}, "partitions": 4}
    with Running(drain(**waiting)) as first:
        first.wait(lambda: conn.execute("SELECT count(*) > 0 FROM taskq.staged").fetchall() == [(True,)])
    assert isinstance(first.error, AirflowException)
    # The driver is a child of spark-submit. It detects that its parent died, and releases its tasks.
    wait_until(lambda: queue.count("work")["work"].keys() == {State.READY} and not queue.owners())
    gate.touch()
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python_without_us(tmp_path / "venv")))
    monkeypatch.delenv("PYTHONPATH")
    second = drain(**waiting, ship_package=True, py_files=str(PROGRAMS / "transforms.py"))
    report = second.execute(context_of("drain"))
    close_output(second)
    assert report.pop("seconds") > 0
    assert report == {
        "topic": "work",
        "owner": "dag/run/drain/-1",
        "claimed": 20,
        "resumed": 0,
        "decided": 20,
        "completed": {"SUCCESS": 20},
        "failed": 0,
        "pushed": 20,
        "undecided": 0,
        "returned": 0,
        "rounds": 1,
        "stop_reason": "ROUNDS",
    }
    assert queue.count("work")["work"][State.SUCCEEDED].count == 20
    tries = "SELECT DISTINCT attempt, crashes FROM taskq.tasks WHERE topic = 'work'"
    assert conn.execute(tries).fetchall() == [(1, 0)]
    assert receiver.sent == [
        ("taskq.polled", 20, {"topic": "work"}),
        ("taskq.completed", 20, {"topic": "work", "result": "SUCCESS"}),
        ("taskq.pushed", 20, {}),
    ]
    log = "".join(capfd.readouterr())
    assert "round=1 done=20 claimed=20" in log
    password = str(conninfo_to_dict(dsn)["password"])
    assert password not in log + "".join(str(getattr(second, field)) for field in second.template_fields)
    assert "TASKQ_DSN" not in os.environ


def executed(operator: TaskQSparkSubmitOperator) -> dict[str, Any]:
    """Execute the operator, and return its result."""
    try:
        return operator.execute(context_of("drain"))
    finally:
        close_output(operator)


def close_output(operator: TaskQSparkSubmitOperator) -> None:
    """Close the pipe to spark-submit, which the hook of the Spark provider leaves open."""
    started = operator._hook._submit_sp if operator._hook else None
    if started is not None:
        started.stdout.close()


def wait_until(happened: Callable[[], bool]) -> None:
    """Check until a condition holds."""
    deadline = time.monotonic() + 400
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)
