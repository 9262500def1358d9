"""Answers of the views, on the databases of situations.py."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from airflow_provider_taskq.plugins.serializers import links
from airflow_provider_taskq.queue import NewTask, Result, TaskQueue
from airflow_provider_taskq.queue.owner_names import worker_instance_id, worker_owner_name
from tests.airflow.site import SharedAirflow
from tests.plugin.conftest import Client
from tests.plugin.situations import HOLDER, HOSTILE, HOSTILE_TEXT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.promise("Each view shows what it names, and leads to the reason of a stuck task"),
]

CLAIM: dict[str, Any] = {"dag_id": "shop", "run_id": "manual__1", "task_id": "claim", "map_index": -1}
API = "/api/taskq_page"


def test_airflow_lists_the_page_and_the_panel_relative_to_its_base_path(page_site: SharedAirflow) -> None:
    (plugin,) = [each for each in page_site.get("plugins")["plugins"] if each["name"] == "taskq"]
    apps = {app["url_route"]: app for app in plugin["react_apps"]}
    assert {route: app["destination"] for route, app in apps.items()} == {
        "taskq": "nav",
        "taskq-tasks": "task_instance",
    }
    for app in apps.values():
        for address in (app["bundle_url"], app["icon"], app["icon_dark_mode"]):
            answer = httpx.get(f"{page_site.base_url}/{address}", trust_env=False, timeout=60)
            assert answer.status_code == 200, address
    assert page_site.get("plugins/importErrors")["total_entries"] == 0


def test_a_worker_that_loads_the_plugin_imports_no_app() -> None:
    program = (
        "import sys; from airflow_provider_taskq.plugins.taskq import TaskQPlugin; TaskQPlugin.react_apps;"
        "print([name for name in sys.modules if name.startswith('airflow_provider_taskq.plugins.')])"
    )
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert result.stdout.splitlines()[-1] == "['airflow_provider_taskq.plugins.taskq']"


def test_owners_that_are_task_instances_have_links() -> None:
    assert links("dag/scheduled__2026-01-01T00:00:00+00:00/task/-1") == {
        "dag_run": "dags/dag/runs/scheduled__2026-01-01T00%3A00%3A00%2B00%3A00",
        "task_instance": "dags/dag/runs/scheduled__2026-01-01T00%3A00%3A00%2B00%3A00/tasks/task",
    }
    mapped = links("dag/a/b/group.task/3")
    assert mapped is not None
    assert mapped["task_instance"] == "dags/dag/runs/a%2Fb/tasks/group.task/mapped/3"
    worker = worker_owner_name("dag/a/b/task/-1", worker_instance_id(), 12)
    assert links(worker) == links("dag/a/b/task/-1")
    assert links(worker_owner_name("dag/run/task/7", "host.example-31-0a1b2c", 3)) == links("dag/run/task/7")


@pytest.mark.parametrize(
    "name",
    [
        *(None, "", "worker-7", "a b/run/task/1", "dag/run/ta sk/1", "a/b/c/d", "a/b/-1", "//b/c/1", "a/b/c/--1"),
        *("a/b/c/-", "host/1/2/x", worker_owner_name("a/b", "host.example-31-0a1b2c", 1)),  # of a topic with a slash
    ],
    ids=repr,
)
def test_other_owners_have_no_links(name: str | None) -> None:
    assert links(name) is None


def get_view(client: Client, path: str, **params: Any) -> dict[str, Any]:
    """The answer of a view to a viewer; it has a time."""
    answer = client("viewer").get(f"{API}/{path}", params=params)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    assert datetime.fromisoformat(body["as_of"]).tzinfo is not None
    return body


def names(client: Client, **params: Any) -> list[str]:
    """The identifiers on a page of tasks."""
    return [task["identifier"] for task in get_view(client, "tasks", **params)["tasks"]]


def topics(client: Client) -> dict[str, dict[str, Any]]:
    """All topics as the page lists them."""
    return {each["topic"]: each for each in get_view(client, "topics", size=200)["topics"]}


def test_topics_are_listed_by_name_with_counts_in_pages(client: Client) -> None:
    found = topics(client)
    assert list(found) == sorted(found)
    orders = found["orders"]
    assert orders["running"] == {"count": 2, "capped": False}
    assert (orders["ready"]["count"], orders["scheduled"]["count"], orders["consumers"]) == (9, 1, 1)
    assert orders["retrying"]["count"] == 3
    assert found["payments"]["failed"]["count"] == 5
    assert found["payments"]["expired"]["count"] == 1
    assert found["waiting"]["blocked"]["count"] == 1
    assert [name for name, each in found.items() if each["paused"]] == ["reports"]
    assert found["no-worker"]["oldest_seconds"] >= 0
    assert found["empty"]["oldest_seconds"] is None
    first = get_view(client, "topics", size=3)
    assert [each["topic"] for each in first["topics"]] == list(found)[:3]
    rest = get_view(client, "topics", size=100, after=first["next"])
    assert [each["topic"] for each in rest["topics"]] == list(found)[3:]
    assert rest["next"] is None
    assert [each["topic"] for each in get_view(client, "topics", search="ORD")["topics"]] == ["orders"]


def test_topics_can_be_sorted_and_limited_to_trouble_with_totals(client: Client) -> None:
    whole = get_view(client, "topics", size=100)
    known = {each["topic"]: each for each in whole["topics"]}
    for key in ("ready", "running", "failed"):
        shown = get_view(client, "topics", sort=key, order="desc", size=2)
        assert [each["topic"] for each in shown["topics"]] == sorted(known, key=lambda t: (-known[t][key]["count"], t))[
            :2
        ]
        assert shown["totals"] == whole["totals"]
        assert whole["totals"][key] == {"count": sum(each[key]["count"] for each in known.values()), "capped": False}
    assert get_view(client, "topics", sort="oldest", order="asc")["topics"][0]["oldest_seconds"] is None
    assert (whole["totals"]["topics"], whole["capped"]) == (len(known), False)
    trouble = get_view(client, "topics", trouble=True, size=100)
    assert {each["topic"] for each in trouble["topics"]} == {"payments", "reports", HOSTILE}
    assert trouble["totals"]["topics"] == 3
    assert trouble["totals"]["failed"] == whole["totals"]["failed"]


def test_the_search_finds_a_task_of_any_topic_by_sequence_identifier_or_reference(client: Client) -> None:
    def found(text: str, **params: Any) -> list[tuple[str, str]]:
        tasks = get_view(client, "search", text=text, **params)["tasks"]
        assert [task["sequence"] for task in tasks] == sorted((task["sequence"] for task in tasks), reverse=True)
        return [(task["topic"], task["identifier"]) for task in tasks]

    assert found("order-50") == [("orders", "order-50")] * 2
    assert found(" payment-0 ") == [("payments", "payment-0")]
    assert found("batch-2") == [("orders", f"order-{n}") for n in range(59, 0, -3)]
    assert found(HOSTILE_TEXT) == [(HOSTILE, HOSTILE_TEXT)]
    assert found("order-") == []
    sequence = get_view(client, "tasks", topic="reports", identifier="report-1")["tasks"][0]["sequence"]
    assert found(str(sequence)) == found(f"#{sequence}") == [("reports", "report-1")]
    few = get_view(client, "search", text="batch-2", size=5)
    assert (len(few["tasks"]), few["more"]) == (5, True)


def test_a_topic_has_policy_charts_and_owners(client: Client) -> None:
    topic = get_view(client, "topic", topic="orders")["topic"]
    assert topic["policy"]["max_attempts"] == 3
    assert topic["policy"]["base"] == 3600
    assert (len(topic["hour"]), len(topic["day"])) == (60, 24)
    assert sum(span["succeeded"] for span in topic["day"]) > 0
    assert topic["sampled"] == 1
    assert [owner["owner"] for owner in topic["owners"]] == [HOLDER]
    answer = get_view(client, "throughput", topic=["orders", "empty"])
    assert (list(answer["topics"]), answer["span_seconds"]) == (["orders"], 180)
    bars = answer["topics"]["orders"]
    assert {len(bar) for bar in bars} == {4}
    assert all(0 <= bar[0] < 20 and sum(bar[1:]) > 0 for bar in bars)
    assert sum(bar[1] for bar in bars) == sum(span["succeeded"] for span in topic["hour"])
    everything = client("viewer").get(f"{API}/throughput", params={"topic": sorted(topics(client))})
    assert len(everything.json()["topics"]) >= 2
    assert len(everything.content) < 1000 * len(everything.json()["topics"])


def test_a_topic_with_a_hostile_name_is_listed(client: Client) -> None:
    assert get_view(client, "topic", topic=HOSTILE)["topic"]["topic"] == HOSTILE
    (failed,) = get_view(client, "tasks", topic=HOSTILE, error=HOSTILE_TEXT.upper(), identifier=HOSTILE_TEXT)["tasks"]
    assert (failed["identifier"], failed["reference"], failed["error_summary"]) == (HOSTILE_TEXT,) * 3
    assert failed["links"] is None


def test_tasks_are_found_by_each_filter(client: Client) -> None:
    assert names(client, topic="orders", state="ACTIVE") == ["order-51", "order-50"]
    assert names(client, topic="orders", status="retrying") == ["order-2", "order-1", "order-0"]
    assert names(client, topic="orders", status="scheduled") == ["later"]
    assert names(client, topic="orders", identifier="order-50") == ["order-50", "order-50"]
    assert names(client, topic="orders", reference="batch-1", state="READY", order="oldest") == [
        "order-1",
        "order-52",
        "order-55",
        "order-58",
    ]
    assert len(names(client, topic="payments", error="GATEWAY timed")) == 5
    assert names(client, topic="payments", status="exhausted") == names(client, topic="payments", state="FAILED")
    assert names(client, topic="payments", state="FAILED", status="ready") == []
    assert names(client, topic="reports", status="paused") == ["report-2", "report-1"]
    assert names(client, topic="waiting", status="blocked") == ["invoice-0"]
    assert names(client, topic="orders", since="2100-01-01T00:00:00Z") == []
    assert names(client, topic="orders", until="2001-01-01T00:00:00+02:00") == []
    assert len(names(client, topic="no-worker", since="2001-01-01T00:00:00Z", until="2100-01-01T00:00:00Z")) == 30


def test_pages_lead_forward_and_back_in_both_orders(client: Client) -> None:
    for order in ("newest", "oldest"):
        whole = names(client, topic="no-worker", order=order, size=100)
        first = get_view(client, "tasks", topic="no-worker", order=order, size=12)
        second = get_view(client, "tasks", topic="no-worker", order=order, size=12, after=first["next"])
        last = get_view(client, "tasks", topic="no-worker", order=order, size=12, after=second["next"])
        pages = [[task["identifier"] for task in page["tasks"]] for page in (first, second, last)]
        assert [name for page in pages for name in page] == whole
        assert (first["previous"], last["next"], last["looked_to"]) == (None, None, None)
        back = get_view(client, "tasks", topic="no-worker", order=order, size=12, before=last["previous"])
        assert [task["identifier"] for task in back["tasks"]] == pages[1]
        beginning = get_view(client, "tasks", topic="no-worker", order=order, size=12, before=back["previous"])
        assert [task["identifier"] for task in beginning["tasks"]] == pages[0]
        assert (beginning["previous"], beginning["next"]) == (None, first["next"])


def test_a_task_has_its_reason_history_and_links_to_airflow(client: Client) -> None:
    (held, _) = get_view(client, "tasks", topic="orders", state="ACTIVE", order="oldest")["tasks"]
    one = get_view(client, "task", topic="orders", sequence=held["sequence"])
    assert "held by shop/manual__1/claim/-1" in one["why"]
    assert one["task"]["links"] == {
        "dag_run": "dags/shop/runs/manual__1",
        "task_instance": "dags/shop/runs/manual__1/tasks/claim",
    }
    assert [event["what"] for event in one["timeline"]] == ["pushed", "held"]
    assert one["timeline"][1]["waited_seconds"] == one["task"]["waited_seconds"] > 0
    assert one["task"]["ran_seconds"] > 0
    assert one["timeline"][0]["ran_seconds"] is None
    assert (one["task"]["payload_bytes"], one["task"]["output_bytes"]) == (52, None)
    (waiting,) = get_view(client, "tasks", topic="waiting", status="blocked")["tasks"]
    blocked = get_view(client, "task", topic="waiting", sequence=waiting["sequence"])
    assert "payment-0" in blocked["why"]
    (dependency,) = blocked["depends_on"]
    assert (dependency["topic"], dependency["identifier"], dependency["state"]) == ("payments", "payment-0", "FAILED")
    (recreated,) = get_view(client, "tasks", topic="payments", state="RECREATED")["tasks"]
    timeline = get_view(client, "task", topic="payments", sequence=recreated["sequence"])["timeline"]
    assert [event["actor"] for event in timeline if event["what"] == "recreated"] == ["maria"]


def test_a_task_instance_lists_the_tasks_that_it_holds_pushed_and_waits_for(client: Client) -> None:
    found = get_view(
        client, "instance", **CLAIM, topic="orders", first=1, last=62, identifier=["order-0", "no-such", "later"]
    )
    assert [task["identifier"] for task in found["holds"]] == ["order-50", "order-51"]
    assert len(found["pushed"]) == 50  # of the sixty of one push; two tasks were pushed later
    assert [task["identifier"] for task in found["pushed"]][:2] == ["order-0", "order-1"]
    assert [(each["identifier"], each["task"] and each["task"]["status"]) for each in found["waits_for"]] == [
        ("order-0", "retrying"),
        ("no-such", None),
        ("later", "scheduled"),
    ]
    assert found["topic"]["topic"] == "orders"
    nothing = get_view(client, "instance", **{**CLAIM, "run_id": "other"})
    assert (nothing["owner"], nothing["holds"], nothing["pushed"], nothing["waits_for"]) == (None, [], [], [])
    renamed = get_view(client, "instance", **{**CLAIM, "run_id": "other"}, claimed_as=HOLDER)
    assert [task["identifier"] for task in renamed["holds"]] == ["order-50", "order-51"]


def test_a_task_instance_lists_the_tasks_of_its_own_workers_only(client: Client, acts: TaskQueue) -> None:
    acts.push("work", [f"n{n}" for n in range(30)])
    drain: dict[str, str | int] = {"dag_id": "shop", "run_id": "a/b", "task_id": "drain", "map_index": 1}
    for owner in (
        *(worker_owner_name("shop/a/b/drain/1", "host-1-abcdef", number) for number in (1, 2)),
        worker_owner_name("shop/a/b/drain/10", "host-1-abcdef", 1),
        "shop/a/b/drain/1x",
    ):
        acts.poll("work", acts.register(owner), 5)
    held = client("viewer").get("/api/taskq_acts/instance", params=drain).json()["holds"]
    assert [task["identifier"] for task in held] == [f"n{n}" for n in range(10)]
    assert {task["links"]["task_instance"] for task in held} == {"dags/shop/runs/a%2Fb/tasks/drain/mapped/1"}


def test_owners_are_listed_with_leases_and_held_tasks(client: Client) -> None:
    owners = {each["owner"]: each for each in get_view(client, "owners")["owners"]}
    assert owners[HOLDER]["held"]["count"] == 2
    assert owners[HOLDER]["topics"] == ["orders"]
    assert owners["worker-that-sleeps"]["lapsed"]
    assert "worker-that-died" not in owners  # its lease is gone
    first = get_view(client, "owners", size=2)
    rest = get_view(client, "owners", size=100, after=first["next"])
    assert [each["owner"] for each in (*first["owners"], *rest["owners"])] == list(owners)
    assert {each["owner"] for each in get_view(client, "owners", search="SHOP/")["owners"]} == {HOLDER}
    one = get_view(client, "owner", owner=HOLDER, size=1)
    assert [task["identifier"] for task in one["tasks"]] == ["order-50"]
    following = get_view(client, "owner", owner=HOLDER, after=one["next"])
    assert [task["identifier"] for task in following["tasks"]] == ["order-51"]
    assert get_view(client, "owner", owner="worker-that-died")["owner"]["gone"]
    assert get_view(client, "owner", owner="never seen")["owner"] is None


def test_locks_consumer_groups_ticks_and_health_are_listed(client: Client) -> None:
    (lock,) = get_view(client, "locks")["locks"]
    assert (lock["name"], lock["held_by"]) == ("nightly-maintenance", "host-3")
    (group,) = get_view(client, "consumer_groups")["consumer_groups"]
    assert (group["group"], group["topic"], group["behind"]["count"]) == ("warehouse", "orders", 52)
    for params in ({}, {"topic": "nightly"}):
        (tick,) = get_view(client, "ticks", **params)["ticks"]
        assert (tick["topic"], tick["prefix"], tick["waiting"]) == ("nightly", "reports/daily", 12)
        assert tick["next"] < tick["last"]
    findings = get_view(client, "health")["findings"]
    assert {"lapsed leases", "open transactions"} <= {each["subject"] for each in findings}
    assert all(each["remedy"] for each in findings if each["severity"] != "fine")
    assert {each["severity"] for each in findings} <= {"critical", "warning", "notice", "fine"}


@pytest.mark.parametrize(
    ("path", "params", "status"),
    [
        ("tasks", {}, 400),
        ("tasks", {"topic": "none"}, 404),
        ("tasks", {"topic": "orders", "state": "LOST"}, 400),
        ("tasks", {"topic": "orders", "after": 1, "before": 9}, 400),
        ("task", {"topic": "orders", "sequence": 10**12}, 404),
        ("topic", {"topic": "none"}, 404),
        ("topics", {"sort": "name; DROP"}, 400),
    ],
)
def test_an_invalid_request_is_an_error_sentence(
    client: Client, path: str, params: dict[str, Any], status: int
) -> None:
    answer = client("viewer").get(f"{API}/{path}", params=params)
    assert (answer.status_code, set(answer.json())) == (status, {"error"}), answer.text


def test_a_topic_lists_the_dags_that_use_it_or_are_started_by_it(client: Client) -> None:
    def uses(kind: str = "uses", conn_id: str = "taskq_page", **params: Any) -> set[tuple[Any, ...]]:
        answer = client("viewer").get(f"/api/{conn_id}/dags", params={"topic": "orders", **params}).json()
        assert not answer["partial"]
        return {(use["dag_id"], use["task_id"], use["role"]) for use in answer[kind]}

    assert uses() == {
        ("shop", "push", "pushes"),
        ("shop", "claim", "waits"),
        ("shop", "settled", "waits"),
        ("partner", "push_to_each", "pushes"),
        ("partner", "deliver", "drains"),
        ("woken", None, "starts"),
    }
    assert uses("templated") == {("partner", "templated", "pushes")}
    assert uses(topic="payments") == {("partner", "push_to_each", "pushes")}
    assert uses(conn_id="taskq_acts") == {("partner", "elsewhere", "pushes")}
    assert uses(topic="empty") == set()
    (push,) = [use for use in get_view(client, "dags", topic="orders")["uses"] if use["task_id"] == "claim"]
    assert push["links"] == {"dag": "dags/shop", "task": "dags/shop/tasks/claim"}


def test_a_sensor_shows_its_wait_and_the_states_of_its_claim(client: Client, acts: TaskQueue) -> None:
    def instance(**params: Any) -> dict[str, Any]:
        answer = client("viewer").get("/api/taskq_acts/instance", params={**CLAIM, "topic": "work", **params})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    acts.push("work", [NewTask(f"later-{n}", delay=timedelta(hours=1)) for n in range(3)])
    with acts.conn.transaction():
        acts.set_actor("ann")
        acts.pause_topic("work")
    waits = instance(waits_for="ready", number=5)["waits"]
    assert waits.startswith("Waits for 5 ready tasks of topic 'work'; 0 ready, 3 scheduled, topic paused by ann since ")
    acts.resume_topic("work")
    states = instance(waits_for="states", identifier=["later-0", "none"])["waits"]
    assert "'later-0' is READY, 'none' has no task" in states
    acts.push("work", [f"n{n}" for n in range(20)])
    owner = acts.register(HOLDER)
    held = acts.poll("work", owner, 20)
    acts.complete(owner, {task: Result.FAILURE if n < 2 else Result.SUCCESS for n, task in enumerate(held[:19])})
    claim = instance(claimed=20)["claim"]
    assert claim["sentence"] == "Claimed 20: 17 succeeded, 2 failed, 1 running."
    assert [task["sequence"] for task in claim["tasks"]] == [task.sequence for task in held]
    acts.release(owner)
    assert instance(claimed=20)["claim"]["sentence"].endswith(
        "2 failed, 1 given back to the topic, to be tried again, or removed."
    )
    assert instance()["drain"] is None
    acts.begin_drain(HOLDER, "work")
    assert instance()["drain"] == "Drains topic 'work'; it has not reported its end."
    acts.end_drain(HOLDER, {"topic": "work", "handled": 1_200, "succeeded": 1_199, "failed": 1})
    assert instance()["drain"] == "Drained topic 'work': 1,200 handled, 1,199 succeeded, 1 failed."
    later = datetime.now(UTC) + timedelta(hours=1)
    assert instance(claimed=20, since=later.isoformat())["claim"]["states"] == []
    assert instance()["claim"] is None
