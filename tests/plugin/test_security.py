import json
from typing import Any

import httpx
import pytest
from fastapi import HTTPException

from airflow_provider_taskq.queue import NewTask, TaskQueue
from tests.plugin.conftest import Client
from tests.plugin.databases import HIDDEN, patient
from tests.plugin.situations import SECRET

pytestmark = [
    pytest.mark.slow,
    pytest.mark.promise("Each route of the page needs a login, and each action and payload the right to it"),
]

ACT = "/api/taskq_acts/actions"
PAUSE = {"action": "pause", "topic": "work", "confirm": True}
# Paths that FastAPI serves by default, and a path that does not exist.
NOTHING = (
    "/",
    "/docs",
    "/redoc",
    "/openapi.json",
    "/docs/oauth2-redirect",
    "/api",
    "/api/",
    "/static",
    "/nothing/at/all",
)


def test_every_route_except_static_refuses_anonymous_requests(client: Client, routes: list[tuple[str, str]]) -> None:
    requests = [*routes, *(("GET", path) for path in NOTHING), ("POST", "/api/taskq_acts/topics"), ("PUT", ACT)]
    answers = {one: client(None).request(*one, content=b"{not json") for one in requests}
    assert len(answers) > 25
    assert {one: answer.status_code for one, answer in answers.items()} == dict.fromkeys(answers, 401)


def test_a_forged_token_is_refused(client: Client, base_url: str) -> None:
    answer = client(None).get("/api/connections", headers={"Authorization": "Bearer made-up"})
    assert answer.status_code in {401, 403}  # Airflow's own answer
    made_up = {"_token": "made-up"}
    forged = httpx.get(f"{base_url}/taskq/api/connections", cookies=made_up, trust_env=False, timeout=60)
    assert forged.status_code in {401, 403}


def test_the_app_serves_no_description_of_itself(client: Client) -> None:
    for path in NOTHING:
        assert client("admin").get(path).status_code == 404, path


def test_static_serves_the_files_of_the_page_and_nothing_else(client: Client) -> None:
    answer = client(None).get("/static/taskq.js")
    assert answer.status_code == 200
    assert "javascript" in answer.headers["content-type"]
    again = client(None).get("/static/taskq.js", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304
    for path in ("/static/", "/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static/none.js"):
        assert client(None).get(path).status_code in {401, 404}, path


def test_every_answer_has_security_headers(client: Client) -> None:
    for role, path in ((None, "/static/taskq.js"), (None, "/docs"), ("admin", "/api/connections"), ("admin", "/none")):
        headers = client(role).get(path).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == ("no-cache" if "static" in path else "no-store")


def test_a_connection_that_is_not_listed_is_not_found(client: Client, routes: list[tuple[str, str]]) -> None:
    listed = client("admin").get("/api/connections").json()["connections"]
    assert HIDDEN not in [each["conn_id"] for each in listed]
    views = [path for method, path in routes if method == "GET" and "taskq_acts" in path]
    assert len(views) > 10
    for path in views:
        answer = client("admin").get(path.replace("taskq_acts", HIDDEN), params={"topic": "orders", "sequence": 1})
        assert answer.status_code == 404, path
        unknown = client("admin").get(path.replace("taskq_acts", "no_such"), params={"topic": "orders", "sequence": 1})
        assert answer.json() == unknown.json()
    assert client("admin").post(f"/api/{HIDDEN}/actions", json=PAUSE).status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://evil.example"},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
    ],
)
def test_a_request_from_another_site_is_refused(client: Client, acts: TaskQueue, headers: dict[str, str]) -> None:
    content = json.dumps(PAUSE).encode()
    sent = {"Content-Type": "application/json", **headers}
    answer = client("admin").post(ACT, content=content, headers=sent)
    assert answer.status_code in {400, 403}
    assert not any(each.paused for each in acts.browse_topics())


def test_a_request_from_airflows_own_page_is_accepted(client: Client, acts: TaskQueue, base_url: str) -> None:
    origin = base_url.removesuffix("/airflow")
    answer = client("admin").post(ACT, json=PAUSE, headers={"Sec-Fetch-Site": "same-origin", "Origin": origin})
    assert answer.status_code == 200
    assert [each.paused for each in acts.browse_topics()] == [True]


@pytest.mark.promise("No view shows a payload until it is revealed, and that leaves a trace")
def test_no_view_returns_a_payload(client: Client, routes: list[tuple[str, str]]) -> None:
    parameters: dict[str, Any] = {
        "topic": "orders",
        "sequence": 1,
        "owner": "shop/manual__1/claim/-1",
        "dag_id": "shop",
        "run_id": "manual__1",
        "task_id": "claim",
        "text": "a",
        "first": 1,
        "last": 9,
    }
    texts = ""
    for method, path in routes:
        if method == "GET" and "taskq_acts" in path:
            answer = client("admin").get(path.replace("taskq_acts", "taskq_page"), params=parameters)
            assert answer.status_code == 200, answer.text
            texts += answer.text
    assert "order-1" in texts
    assert SECRET not in texts


@pytest.mark.promise("No view shows a payload until it is revealed, and that leaves a trace")
def test_a_reveal_needs_the_right_to_act_and_writes_an_audit_line(client: Client, acts: TaskQueue) -> None:
    (task,) = acts.push("work", [NewTask("large", {"text": "ä" * 100_000})])
    parameters = {"topic": "work", "sequence": task.sequence}
    assert client("viewer").post("/api/taskq_acts/reveal", json=parameters).status_code == 403
    revealed = client("op").post("/api/taskq_acts/reveal", json=parameters).json()
    assert revealed["payload"].startswith('{"text":"ää')
    assert 64 * 1024 - 4 < len(revealed["payload"].encode()) <= 64 * 1024
    assert (revealed["payload_bytes"], revealed["output"], revealed["cut"]) == (200_011, None, True)
    (line,) = acts.audit_trail()
    assert (line.actor, line.action, line.what) == ("op", "reveal", f"sequence {task.sequence}")
    assert client("op").post("/api/taskq_acts/reveal", json={**parameters, "sequence": 10**9}).status_code == 404


def test_error_messages_name_neither_server_nor_role_nor_payload(client: Client) -> None:
    down = client("admin").get("/api/taskq_down/topics")
    assert (down.status_code, down.json()) == (
        503,
        {"error": "The page cannot connect to the database of taskq_down; the log of the API server has the reason."},
    )
    bare = client("admin").get("/api/taskq_bare/topics")
    assert bare.status_code == 503
    assert "install" in bare.json()["error"]
    pushed = {"action": "push", "topic": "work", "options": {"identifier": "a", "payload": f'{{"{SECRET}'}}
    refused = client("admin").post(ACT, json=pushed)
    assert refused.status_code == 400
    assert refused.json()["error"].startswith("The payload is not JSON")
    for body in ({"topic": SECRET, "sequence": SECRET}, {"topic": [SECRET]}, SECRET):
        invalid = client("admin").post("/api/taskq_acts/reveal", json=body)
        assert invalid.status_code == 400
        assert SECRET not in invalid.text


@pytest.mark.promise("A view is read-only, has a time limit, and reads a bounded number of rows")
def test_views_are_read_only_and_have_a_timeout(page_dsns: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_taskq.plugins import session

    monkeypatch.setenv("AIRFLOW_CONN_TASKQ_PAGE", patient(page_dsns["acts"]))
    monkeypatch.setattr(session, "VIEW_SECONDS", 0.1)
    with pytest.raises(HTTPException) as refused, session.read_only("taskq_page") as queue:
        queue.create_topic("made by a view")
    assert refused.value.status_code == 503
    with pytest.raises(HTTPException, match="took too long"), session.read_only("taskq_page") as queue:
        queue.conn.execute("SELECT pg_sleep(5)")


def test_too_many_concurrent_requests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    from airflow_provider_taskq.plugins import session

    monkeypatch.setattr(session, "_free", threading.BoundedSemaphore(1))
    monkeypatch.setattr(session, "CONNECT_SECONDS", 0.01)
    with session._free, pytest.raises(HTTPException, match="too many requests"), session.read_only("taskq_page"):
        pass
