"""Hostile requests to the API of the page, made from its own description: an answer or a message, never a traceback."""

import json
import warnings
from typing import Any, get_args

import httpx
import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_taskq.queue import TaskQueue
from tests.fuzz.inputs import FUZZ, INPUTS, JSON, MOMENTS, TEXTS, WHOLE
from tests.plugin.conftest import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

CONN = "taskq_acts"


def check(status: int, text: str, path: str) -> None:
    """An answer is a document. An error has a sentence, and no part of a program."""
    assert status < 500, f"{path}: {status}: {text}"
    assert "Traceback" not in text
    document = json.loads(text)
    assert status < 400 or (set(document) == {"error"} and document["error"]), f"{path}: {status}: {text}"


@pytest.fixture(scope="session")
def operations() -> list[Any]:
    """The operations of the API that read, as schemathesis generates requests for them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of modules that Airflow's API imports
        import schemathesis
        from schemathesis.core.result import Ok

        from airflow_provider_taskq.plugins.app import make_app

        described = schemathesis.openapi.from_dict(make_app().openapi())
    found = [each.ok() for each in described.get_all_operations() if isinstance(each, Ok)]
    return [each for each in found if each.method.upper() == "GET" and each.path.startswith("/api/{conn_id}/")]


def test_every_view_answers_any_request_with_a_document_or_a_message(
    base_url: str, tokens: dict[str, str], acts: TaskQueue, operations: list[Any]
) -> None:
    acts.push("work", ["a", "b"])
    assert len(operations) > 10
    answered: set[int] = set()
    with requests.Session() as session:
        session.trust_env = False
        session.cookies.update({"_token": tokens["admin"]})
        for operation in operations:

            @settings(FUZZ, max_examples=max(1, INPUTS // len(operations)))
            @given(case=operation.as_strategy())
            def request(case: Any) -> None:
                case.path_parameters = {"conn_id": CONN}
                answer = session.request(**case.as_transport_kwargs(base_url=f"{base_url}/taskq"), timeout=600)
                check(answer.status_code, answer.text, case.path)
                answered.add(answer.status_code)

            request()
    assert {200, 400} <= answered
    assert acts.count_tasks("work") == 2


@pytest.fixture(scope="session")
def action_names() -> list[str]:
    """The actions of the page."""
    from airflow_provider_taskq.plugins.schemas import ActionName

    return list(get_args(ActionName))


TOPICS = st.one_of(st.just("work"), TEXTS)
SEQUENCES = st.one_of(st.integers(1, 10), WHOLE, JSON)
# The options of all actions. Most values fit their names, so that one that does not fit is reached.
OPTIONS = {
    "revival": st.sampled_from(["RESET", "APPEND", "SUPERSEDE", "REPLACE"]),
    "result": st.sampled_from(["FAILURE", "SUSPENSION", "FILTER", "SUCCESS"]),
    "owner": TEXTS,
    "grace_seconds": st.floats(),
    "priority": WHOLE,
    "identifier": TEXTS,
    "payload": st.one_of(TEXTS, JSON.map(json.dumps)),
    "reference": TEXTS,
    "delay_seconds": st.floats(),
    "ttl_seconds": st.floats(),
    "available_at": MOMENTS.map(str),
    "suspended": st.booleans(),
    "insertion": st.sampled_from(["APPEND", "SUPERSEDE", "REPLACE", "DELETE"]),
    "depends_on": st.lists(st.lists(TEXTS, max_size=3), max_size=2),
}
FILTER = {
    "state": st.sampled_from(["FAILED", "READY", "active"]),
    **dict.fromkeys(("status", "identifier", "reference", "error", "error_group"), TEXTS),
    **dict.fromkeys(("since", "until"), MOMENTS.map(str)),
}


def some(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """A few of the fields, seldom with a value of another type."""
    names = st.lists(st.sampled_from(sorted(fields)), max_size=3, unique=True)
    values = {name: st.one_of(each, each, each, JSON) for name, each in fields.items()}
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: values[name] for name in chosen}))


def bodies(actions: list[str]) -> st.SearchStrategy[tuple[str, Any]]:
    """Paths and bodies of requests that act."""
    action = {
        "action": st.one_of(st.sampled_from(actions), TEXTS),
        "topic": TOPICS,
        "options": st.one_of(some(OPTIONS), st.fixed_dictionaries({"identifier": TEXTS}), JSON),
    }
    chosen = {
        "sequences": st.one_of(st.lists(SEQUENCES, max_size=3), JSON),
        "filter": st.one_of(some(FILTER), JSON),
        "confirm": st.booleans(),
        "expected": st.one_of(WHOLE, JSON),
        "token": st.one_of(WHOLE, JSON),
    }
    reveal = {"topic": TOPICS, "sequence": SEQUENCES}
    return st.one_of(
        st.tuples(st.just("actions"), st.fixed_dictionaries(action, optional=chosen)),
        st.tuples(st.just("reveal"), st.fixed_dictionaries(reveal)),
        st.tuples(st.sampled_from(["actions", "reveal"]), st.binary(max_size=50)),
    )


def test_every_action_answers_any_request_with_a_document_or_a_message(
    client: Client, acts: TaskQueue, action_names: list[str]
) -> None:
    acts.push("work", ["a", "b"])
    admin: httpx.Client = client("admin")
    answered: set[int] = set()
    headers = {"Content-Type": "application/json"}

    @FUZZ
    @given(asked=bodies(action_names))
    def request(asked: tuple[str, Any]) -> None:
        path, body = asked
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = admin.post(f"/api/{CONN}/{path}", content=content, headers=headers)
        check(answer.status_code, answer.text, path)
        answered.add(answer.status_code)

    request()
    assert {200, 400, 404} <= answered
    assert [each.topic for each in acts.browse_topics()] == ["work"]
