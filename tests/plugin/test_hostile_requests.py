"""Hostile requests to the API of the page, made from its own description: an answer or a message, never a traceback."""

import json
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any, get_args

import httpx
import psycopg
import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_taskq.queue import TaskQueue
from tests.fuzz.inputs import FUZZ, INPUTS, JSON, MANY, MOMENTS, TEXTS, WHOLE, mostly
from tests.fuzz.outcomes import StoredState, check_shares, limited_time
from tests.fuzz.situation import OWNER, SEQUENCES, refill
from tests.plugin.conftest import Client

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.promise("Any input is stored as it is, or refused with an error of the queue"),
    pytest.mark.promise("A view is read-only, has a time limit, and reads a bounded number of rows"),
]

CONN = "taskq_acts"


def check(status: int, text: str, path: str) -> None:
    """An answer is a document. An error has a sentence, and no part of a program."""
    assert status < 500, f"{path}: {status}: {text}"
    assert "Traceback" not in text
    document = json.loads(text)
    assert status < 400 or (set(document) == {"error"} and document["error"]), f"{path}: {status}: {text}"


def share_of_answers(statuses: Counter[int]) -> Counter[bool]:
    """How many requests were answered (True), and how many refused."""
    return Counter({True: statuses[200], False: statuses.total() - statuses[200]})


@pytest.fixture
def stored(page_dsns: dict[str, str], acts: TaskQueue) -> Iterator[StoredState]:
    """What the queue behind `taskq_acts` stores."""
    refill(acts)
    with psycopg.connect(page_dsns["acts"], autocommit=True) as session:
        yield StoredState(session)


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


# Half of the requests have these values, where the operation has such a parameter: the others seldom reach the queue.
KNOWN: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.just("work"),
    "sequence": st.integers(1, SEQUENCES),
    "owner": st.just(OWNER),
    "text": st.sampled_from(["a", "5"]),
    "dag_id": st.just("dag"),
    "run_id": st.just("run"),
    "task_id": st.just("task"),
}


def requests_of(operation: Any) -> st.SearchStrategy[Any]:
    """Requests for an operation: those that fit its description, with and without known values, and others."""
    from schemathesis import GenerationMode

    names = [each.name for each in operation.query]
    fitting: st.SearchStrategy[Any] = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    known = st.fixed_dictionaries({name: KNOWN[name] for name in names if name in KNOWN})

    def with_known(case: Any, values: dict[str, Any]) -> Any:
        case.query = {**(case.query or {}), **values}
        return case

    if not names:
        return fitting
    other: st.SearchStrategy[Any] = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
    return st.one_of(fitting, other, st.builds(with_known, fitting, known), st.builds(with_known, other, known))


def test_every_view_answers_any_request_with_a_document_or_a_message(
    base_url: str, tokens: dict[str, str], stored: StoredState, operations: list[Any]
) -> None:
    from schemathesis.specs.openapi import checks

    conformance = [
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    asking = [each for each in operations if list(each.query)]
    assert len(asking) > 10
    answered: dict[str, Counter[int]] = {each.path: Counter() for each in operations}
    with requests.Session() as session:
        session.trust_env = False
        session.cookies.update({"_token": tokens["admin"]})
        for operation in operations:

            @settings(FUZZ, max_examples=-(-INPUTS // len(asking)))
            @given(case=requests_of(operation))
            def request(case: Any) -> None:
                case.path_parameters = {"conn_id": CONN}
                with limited_time():
                    answer = session.request(**case.as_transport_kwargs(base_url=f"{base_url}/taskq"), timeout=600)
                check(answer.status_code, answer.text, case.path)
                case.validate_response(answer, checks=conformance)
                answered[case.operation.path][answer.status_code] += 1

            request()
    assert sum(answered[each.path].total() for each in asking) >= INPUTS
    assert [path for path, statuses in answered.items() if not statuses[200]] == []
    check_shares(share_of_answers(sum((answered[each.path] for each in asking), Counter())))
    stored.check_unchanged()


@pytest.fixture(scope="session")
def action_names() -> list[str]:
    """The actions of the page."""
    from airflow_provider_taskq.plugins.schemas import ActionName

    return list(get_args(ActionName))


TOPICS = mostly(st.just("work"), TEXTS)
NUMBERS = mostly(st.integers(1, SEQUENCES), st.one_of(WHOLE, JSON), 8)
# The options of all actions. Most values fit their names, so that one that does not fit is reached.
OPTIONS = {
    "revival": st.sampled_from(["RESET", "APPEND", "SUPERSEDE", "REPLACE"]),
    "result": st.sampled_from(["FAILURE", "SUSPENSION", "FILTER", "SUCCESS"]),
    "owner": st.one_of(st.just(OWNER), TEXTS),
    "grace_seconds": st.floats(),
    "priority": WHOLE,
    "identifier": st.one_of(st.sampled_from(["a", "failed"]), TEXTS),
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
    values = {name: mostly(each, JSON) for name, each in fields.items()}
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: values[name] for name in chosen}))


# The options of each action. The others have none.
OWN_OPTIONS = {
    "retry": ("revival",),
    "reassign": ("result",),
    "release": ("owner",),
    "expire": ("grace_seconds",),
    "set_priority": ("priority",),
    "push": tuple(sorted(set(OPTIONS) - {"revival", "result", "owner", "grace_seconds"})),
}
OF_TASKS = {"retry", "reassign", "purge", "run_now", "set_priority", "cancel"}
REQUIRED = {"reassign": "result", "release": "owner", "push": "identifier"}


def action_body(action: str) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies of an action: mostly with its own options, and tasks by sequences or by a filter."""
    own = {name: OPTIONS[name] for name in OWN_OPTIONS.get(action, ())}
    required = st.fixed_dictionaries({name: OPTIONS[name] for name in REQUIRED.get(action, "").split()})
    options = st.builds(lambda some_of, needed: {**some_of, **needed}, some(own) if own else st.just({}), required)
    tasks = st.one_of(
        st.fixed_dictionaries({"sequences": st.lists(NUMBERS, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"filter": some(FILTER), "expected": mostly(st.integers(0, SEQUENCES), WHOLE)}),
    )
    odd = st.fixed_dictionaries(
        {},
        optional={
            "sequences": JSON,
            "filter": JSON,
            "expected": JSON,
            "token": st.one_of(WHOLE, JSON),
            "options": JSON,
        },
    )
    chosen = mostly(tasks, odd) if action in OF_TASKS else mostly(st.just({}), st.one_of(tasks, odd))
    body = {
        "action": st.just(action),
        "topic": TOPICS,
        "options": mostly(options, some(OPTIONS), 6),
        "confirm": st.booleans(),
    }
    return st.builds(lambda given, more: {**given, **more}, st.fixed_dictionaries(body), chosen)


def bodies(actions: list[str]) -> st.SearchStrategy[tuple[str, Any]]:
    """Paths and bodies of requests that act."""
    action = st.one_of([action_body(name) for name in actions])
    reveal = st.fixed_dictionaries({"topic": TOPICS, "sequence": NUMBERS})
    odd = st.one_of(
        st.tuples(st.just("actions"), TEXTS.flatmap(action_body)),
        st.tuples(st.sampled_from(["actions", "reveal"]), st.binary(max_size=50)),
        st.tuples(st.just("reveal"), reveal),
    )
    return mostly(st.tuples(st.just("actions"), action), odd, 5)


def test_every_action_answers_any_request_with_a_document_or_a_message(
    client: Client, acts: TaskQueue, stored: StoredState, action_names: list[str]
) -> None:
    admin: httpx.Client = client("admin")
    answered: Counter[int] = Counter()
    confirmed: set[str] = set()
    headers = {"Content-Type": "application/json"}

    @settings(FUZZ, max_examples=max(INPUTS, 100))  # fewer may ask for nothing that is unknown
    @given(asked=bodies(action_names))
    def request(asked: tuple[str, Any]) -> None:
        path, body = asked
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        with limited_time():
            answer = admin.post(f"/api/{CONN}/{path}", content=content, headers=headers)
        check(answer.status_code, answer.text, path)
        answered[answer.status_code] += 1
        if answer.status_code >= 400 or (path == "actions" and body.get("confirm") is not True):
            stored.check_unchanged()
        else:
            confirmed.add(body.get("action", path))
            if stored.changed_tables():
                refill(acts)
                stored.remember()

    request()
    assert {200, 400, 404} <= set(answered)
    check_shares(share_of_answers(answered))
    assert INPUTS < MANY or confirmed == {*action_names, "reveal"}
