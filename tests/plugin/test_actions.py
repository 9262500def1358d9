"""Actions of the API: each is previewed, confirmed, and done in one transaction with its audit line."""

from datetime import timedelta
from typing import Any

import httpx
import psycopg
import pytest
from fastapi import HTTPException

from airflow_provider_taskq.queue import Decision, NewTask, Result, State, Task, TaskQueue, connect, selection
from tests.internals import damage_task, lapse_lease
from tests.plugin.conftest import Client
from tests.plugin.databases import patient
from tests.plugin.situations import SECRET
from tests.queue.conftest import known

pytestmark = [
    pytest.mark.slow,
    pytest.mark.promise("Each action is previewed, confirmed and audited, in one transaction"),
]

# JSON that PostgreSQL accepts and some clients cannot read.
UNREADABLE = (
    "1e99999999999999999999999",
    "9" * 5_000,
    "[" * 101 + "]" * 101,
    "[" * 50_000 + "]" * 50_000,
)


def post(client: Client, action: str, **body: Any) -> httpx.Response:
    """Sends an action as op, on the topic `work` by default."""
    sent = {"topic": "work", **body, "action": action}
    return client("op").post("/api/taskq_acts/actions", json=sent)


def preview(client: Client, action: str, **body: Any) -> dict[str, Any]:
    """The preview of an action."""
    answer = post(client, action, **body)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    assert document["sentence"].endswith("?")
    return document


def done(client: Client, action: str, **body: Any) -> int:
    """Confirms an action, and returns the number of tasks that it changed."""
    answer = post(client, action, confirm=True, **body)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["done"])


def ended(queue: TaskQueue, result: Result, number: int, error: str | None = None) -> list[Task]:
    """Pushes tasks and completes them with a result."""
    owner = queue.register("worker")
    queue.push("work", [NewTask(f"{result.name}-{n}", {"n": n}) for n in range(number)])
    polled = queue.poll("work", owner, number)
    queue.complete(owner, {task: Decision(result, error=error) for task in polled})
    return polled


def states(queue: TaskQueue) -> dict[State, int]:
    """The number of tasks of the topic in each state."""
    return {state: found.count for state, found in queue.count("work")["work"].items()}


def test_a_preview_changes_nothing_and_writes_no_audit_line(client: Client, acts: TaskQueue) -> None:
    tasks = ended(acts, Result.FAILURE, 3)
    before = states(acts)
    sequences = [task.sequence for task in tasks]
    assert preview(client, "retry", filter={"state": "FAILED"})["count"] == 3
    assert preview(client, "retry", sequences=sequences, options={"revival": "REPLACE"})["count"] == 3
    assert preview(client, "reassign", sequences=sequences[:1], options={"result": "SUCCESS"})["count"] == 1
    assert preview(client, "purge", filter={})["count"] == 3
    assert preview(client, "push", options={"identifier": "new", "payload": '{"a": 1}'})["count"] == 1
    assert preview(client, "pause")["count"] == 1
    assert (states(acts), acts.audit_trail()) == (before, [])
    assert [each.paused for each in acts.browse_topics()] == [False]


def test_a_retry_by_filter_takes_only_tasks_that_match(client: Client, acts: TaskQueue) -> None:
    ended(acts, Result.FAILURE, 3, "a timeout")
    ended(acts, Result.FAILURE, 2, "out of memory")
    given = {"state": "FAILED", "error": "TimeOut"}
    assert preview(client, "retry", filter=given) | {"as_of": ""} == {
        "action": "retry",
        "as_of": "",
        "count": 3,
        "capped": False,
        "sentence": "Retry 3 tasks of work, in their old place?",
        "token": None,
    }
    assert done(client, "retry", filter=given, expected=3) == 3
    assert states(acts) == {State.READY: 3, State.FAILED: 2}
    (line,) = acts.audit_trail()
    role = acts.conn.info.user
    assert (line.actor, line.role, line.action, line.topic, line.count) == ("op", role, "retry", "work", 3)
    assert line.what == "state FAILED, error TimeOut, by RESET"
    (shown,) = client("viewer").get("/api/taskq_acts/audit", params={"topic": "work"}).json()["audit"]
    assert (shown["actor"], shown["role"], shown["count"]) == ("op", role, 3)


def test_a_retry_by_error_group_takes_only_that_group(client: Client, acts: TaskQueue) -> None:
    ended(acts, Result.FAILURE, 3, "ValueError: no mailbox for 17")
    ended(acts, Result.FAILURE, 2, "TimeoutError")
    groups = client("viewer").get("/api/taskq_acts/errors", params={"topic": "work"}).json()["errors"]
    assert [(each["error"], each["failed"]) for each in groups] == [
        ("ValueError: no mailbox for #", 3),
        ("TimeoutError", 2),
    ]
    given = {"state": "FAILED", "error_group": groups[0]["error"]}
    listed = client("viewer").get("/api/taskq_acts/tasks", params={"topic": "work", **given}).json()["tasks"]
    assert {task["error_summary"] for task in listed} == {"ValueError: no mailbox for 17"}
    assert preview(client, "retry", filter=given)["count"] == len(listed) == 3
    assert done(client, "retry", filter=given, expected=3) == 3
    assert states(acts) == {State.READY: 3, State.FAILED: 2}
    (line,) = acts.audit_trail()
    assert line.what == "state FAILED, error group ValueError: no mailbox for #, by RESET"


def test_a_retry_of_named_tasks_recreates_all_or_none(client: Client, acts: TaskQueue) -> None:
    tasks = ended(acts, Result.FAILURE, 2)
    (waiting,) = acts.push("work", ["waiting"])
    sequences = [task.sequence for task in tasks]
    refused = post(client, "retry", sequences=[*sequences, waiting.sequence], confirm=True)
    assert refused.status_code == 409
    assert f"{waiting.sequence} (READY)" in refused.json()["error"]
    assert (states(acts), acts.audit_trail()) == ({State.FAILED: 2, State.READY: 1}, [])
    assert done(client, "retry", sequences=sequences, options={"revival": "APPEND"}) == 2
    assert states(acts) == {State.RECREATED: 2, State.READY: 3}
    events = acts.timeline("work", sequences[0])
    assert [event.actor for event in events if event.what == "recreated"] == ["op"]


def test_actions_that_make_tasks_ready_notify_the_workers(
    client: Client, acts: TaskQueue, page_dsns: dict[str, str]
) -> None:
    ended(acts, Result.FAILURE, 1)
    with connect(page_dsns["acts"], autocommit=True) as waiting:
        waiting.execute("LISTEN taskq")
        assert done(client, "pause") == 1
        assert done(client, "resume") == 1
        assert done(client, "push", options={"identifier": "new"}) == 1
        preview(client, "retry", filter={"state": "FAILED"})
        assert done(client, "retry", filter={"state": "FAILED"}, expected=1) == 1
        assert [notice.payload for notice in waiting.notifies(timeout=10, stop_after=3)] == ["work"] * 3
        assert list(waiting.notifies(timeout=0)) == []


def test_an_action_changes_no_more_tasks_than_the_preview_counted(client: Client, acts: TaskQueue) -> None:
    ended(acts, Result.FAILURE, 3)
    refused = post(client, "retry", filter={"state": "FAILED"}, confirm=True, expected=2)
    assert (refused.status_code, "preview again" in refused.json()["error"]) == (409, True)
    assert post(client, "retry", filter={"state": "FAILED"}, confirm=True).status_code == 400
    assert states(acts) == {State.FAILED: 3}
    assert done(client, "reassign", filter={"state": "FAILED"}, options={"result": "SUCCESS"}, expected=3) == 3
    assert states(acts) == {State.SUCCEEDED: 3}


def test_a_purge_spares_held_waiting_and_expired_tasks_unless_named(client: Client, acts: TaskQueue) -> None:
    ended(acts, Result.FAILURE, 2)
    ended(acts, Result.SUCCESS, 2)
    acts.push("work", ["held", "waiting"])
    (held,) = acts.poll("work", acts.register("holder"))
    assert done(client, "purge", filter={}, expected=4) == 4
    assert states(acts) == {State.ACTIVE: 1, State.READY: 1}
    assert done(client, "purge", sequences=[held.sequence]) == 0
    assert post(client, "purge", filter={"state": "ACTIVE"}).status_code == 400
    assert done(client, "purge", filter={"state": "READY"}, expected=1) == 1
    assert states(acts) == {State.ACTIVE: 1}


def test_a_release_gives_back_the_tasks_of_an_owner_unless_it_registered_again(client: Client, acts: TaskQueue) -> None:
    acts.push("work", ["a", "b"])
    acts.poll("work", acts.register("holder"), 2)
    release: dict[str, Any] = {"topic": None, "options": {"owner": "holder"}}
    seen = preview(client, "release", **release)
    assert seen["count"] == 2
    acts.register("holder")  # its retry
    assert post(client, "release", **release, confirm=True, token=seen["token"]).status_code == 409
    assert states(acts) == {State.ACTIVE: 2}
    assert done(client, "release", **release) == 2
    assert states(acts) == {State.READY: 2}
    assert post(client, "release", **release).status_code == 409


def test_an_expiry_takes_back_lapsed_tasks_and_no_more_than_the_preview_counted(
    client: Client, acts: TaskQueue
) -> None:
    acts.push("work", ["a", "b"])
    for name in ("one", "two"):
        acts.poll("work", acts.register(name))
    lapse_lease(acts.conn)
    assert preview(client, "expire", topic=None, options={"grace_seconds": 3600})["count"] == 0
    assert preview(client, "expire", topic=None)["count"] == 2
    assert post(client, "expire", topic=None, confirm=True, expected=1).status_code == 409
    assert states(acts) == {State.ACTIVE: 2}
    assert done(client, "expire", topic=None, expected=2) == 2
    assert states(acts) == {State.READY: 2}


def test_a_refused_action_rolls_back_before_it_answers(
    acts: TaskQueue, page_dsns: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_taskq.plugins import session

    acts.push("work", ["a", "b"])
    acts.poll("work", acts.register("holder"), 2)
    lapse_lease(acts.conn)
    monkeypatch.setenv("AIRFLOW_CONN_TASKQ_ACTS", patient(page_dsns["acts"]))

    def refused() -> None:
        with session.transaction("taskq_acts", "op") as queue:
            assert queue.expire() == 2
            raise HTTPException(409, "More than was previewed.")

    unheard: list[psycopg.Connection[Any]] = []
    with monkeypatch.context() as server:
        # The server has not read yet that the page closed its connection. No other session waits for that.
        server.setattr(psycopg.Connection, "close", lambda connection: unheard.append(connection))
        with pytest.raises(HTTPException, match="More than"):
            refused()
        assert acts.expire() == 2
    for connection in unheard:
        connection.close()


def test_the_preview_of_a_push_counts_the_older_tasks(client: Client, acts: TaskQueue) -> None:
    acts.push("work", ["a", "a"])
    sentence = preview(client, "push", options={"identifier": "a", "insertion": "DELETE"})["sentence"]
    also = "; of 2 older tasks of this identifier the waiting or ended ones are deleted for good?"
    assert sentence == f"Push a to work{also}"
    assert preview(client, "push", options={"identifier": "a"})["sentence"] == "Push a to work?"


def test_a_push_stores_every_field_of_the_form(client: Client, acts: TaskQueue) -> None:
    acts.create_topic("other")
    acts.push("other", ["first"])
    options = {
        "identifier": "new",
        "payload": f'{{"secret": "{SECRET}", "half": 0.5}}',
        "reference": "by hand",
        "priority": 7,
        "delay_seconds": 3600,
        "ttl_seconds": 60,
        "depends_on": [["other", "first"]],
    }
    assert done(client, "push", options=options) == 1
    task = acts.latest("work", ["new"])["new"]
    assert (task.payload, task.reference, task.priority) == ({"secret": SECRET, "half": 0.5}, "by hand", 7)
    assert (task.available_at - task.created).total_seconds() == pytest.approx(3600, abs=1)
    assert [each.identifier for each in acts.dependencies("work", task.sequence)] == ["first"]
    (line,) = acts.audit_trail()
    assert SECRET not in line.what
    assert line.what == f"new by APPEND, sequence {task.sequence}"


def test_a_topic_is_paused_and_resumed(client: Client, acts: TaskQueue) -> None:
    assert [done(client, "pause"), done(client, "pause"), done(client, "resume")] == [1, 0, 1]
    assert "not paused" in preview(client, "resume")["sentence"]
    assert [(each.action, each.count) for each in acts.audit_trail()] == [("resume", 1), ("pause", 0), ("pause", 1)]


def test_a_failed_action_changes_nothing_and_writes_no_audit_line(client: Client, acts: TaskQueue) -> None:
    refused: list[tuple[str, dict[str, Any], int]] = [
        ("pause", {"topic": "none"}, 404),
        ("pause", {"topic": None}, 400),
        ("pause", {"options": {"for": "ever"}}, 400),
        ("retry", {}, 400),
        ("retry", {"sequences": []}, 400),
        ("retry", {"sequences": [1], "filter": {"state": "FAILED"}}, 400),
        ("retry", {"filter": {"stat": "FAILED"}}, 400),
        ("retry", {"filter": {}}, 400),
        ("retry", {"filter": {"state": "READY"}}, 400),
        ("retry", {"filter": {"status": "ready"}}, 400),
        ("retry", {"filter": {"state": "FAILED"}, "options": {"revival": "EXHUME"}}, 400),
        ("reassign", {"filter": {"state": "FAILED"}}, 400),
        ("push", {"options": {"identifier": " "}}, 400),
        ("push", {"options": {"identifier": "a", "payload": "NaN"}}, 400),
        ("push", {"options": {"identifier": "a", "payload": "{"}}, 400),
        ("push", {"options": {"identifier": "a", "payload": "0.12345678901234567890123"}}, 400),  # it would be rounded
        *(("push", {"options": {"identifier": "a", "payload": text}}, 400) for text in UNREADABLE),
        ("push", {"options": {"identifier": "a", "payload": '"' + "x" * 300_000 + '"'}}, 400),
        ("push", {"options": {"identifier": "a", "delay_seconds": 1, "available_at": "2030-01-01T00:00:00Z"}}, 400),
        ("push", {"options": {"identifier": "a", "payload": "1" * 3_000_000}}, 400),
        ("release", {"options": {}}, 400),
        ("drop", {}, 400),
    ]
    for action, body, status in refused:
        answer = post(client, action, confirm=True, expected=0, **body)
        assert (answer.status_code, set(answer.json())) == (status, {"error"}), (action, answer.text)
    assert (acts.audit_trail(), states(acts)) == ([], {})


def test_the_page_reveals_an_unreadable_payload_as_its_text(client: Client, acts: TaskQueue) -> None:
    (task,) = acts.push("work", ["a"])
    for text in ("[1e400]", "9" * 5_000, "[" * 5_000 + "]" * 5_000):
        damage_task(acts.conn, task.sequence, payload=text)
        parameters: dict[str, str | int] = {"topic": "work", "sequence": task.sequence}
        assert client("op").post("/api/taskq_acts/reveal", json=parameters).json()["payload"] == text
        for view in ("tasks", "task"):
            given: dict[str, str | int] = parameters if view == "task" else {"topic": "work"}
            answer = client("op").get(f"/api/taskq_acts/{view}", params=given)
            assert answer.status_code == 200, answer.text


@pytest.mark.usefixtures("routes")
def test_an_action_on_many_tasks_is_applied_in_parts(acts: TaskQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_taskq.plugins.actions import ACTIONS
    from airflow_provider_taskq.plugins.schemas import ActionRequest, Filter

    monkeypatch.setattr(selection, "MAX_TASKS", 4)
    monkeypatch.setattr(selection, "ROWS_PER_QUERY", 3)
    ended(acts, Result.FAILURE, 10)
    rounds = []
    for _ in range(3):
        request = ActionRequest(
            action="retry", topic="work", filter=Filter.model_validate({"state": "FAILED"}), confirm=True, expected=4
        )
        with acts.conn.transaction():
            acts.set_actor("op")
            result = ACTIONS["retry"](acts, request)
        rounds.append((result.count, result.more))
    assert rounds == [(4, True), (4, True), (2, False)]
    assert states(acts) == {State.READY: 10}


def test_actions_on_waiting_tasks_run_prioritize_and_cancel_them(client: Client, acts: TaskQueue) -> None:
    hour = timedelta(hours=1)
    sequences = [task.sequence for task in acts.push("work", [NewTask(f"t{n}", delay=hour) for n in range(4)])]
    held = acts.poll("work", acts.register("worker"), 1) or acts.push("work", ["now"])
    assert preview(client, "run_now", sequences=sequences[:2])["count"] == 2
    assert {known(acts, one).status for one in sequences} == {"scheduled"}
    assert done(client, "run_now", sequences=sequences[:2]) == 2
    assert [known(acts, one).status for one in sequences] == ["ready", "ready", "scheduled", "scheduled"]
    assert done(client, "set_priority", sequences=sequences[:1], options={"priority": 9}) == 1
    assert known(acts, sequences[0]).priority == 9
    scheduled = {"filter": {"status": "scheduled"}}
    count = preview(client, "cancel", **scheduled)["count"]
    assert done(client, "cancel", **scheduled, expected=count) == count == 2
    assert [known(acts, one).state for one in sequences[2:]] == [State.FILTERED] * 2
    assert post(client, "cancel", filter={"state": "FAILED"}).status_code == 400
    assert post(client, "set_priority", sequences=sequences[:1], options={"priority": 101}).status_code == 400
    acts.poll("work", acts.register("worker"), 1)
    refused = post(client, "cancel", sequences=[sequences[0], held[0].sequence], confirm=True)
    assert (refused.status_code, "only a READY task" in refused.text) == (409, True)
    lines = [(line.action, line.count) for line in reversed(acts.audit_trail())]
    assert lines == [("run_now", 2), ("set_priority", 1), ("cancel", 2)]
