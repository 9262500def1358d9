"""Actions of the page: previewed, then confirmed, each in one transaction with its audit line."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, HTTPException, Request
from pydantic import ValidationError

from airflow_provider_taskq.plugins import serializers
from airflow_provider_taskq.plugins.auth import Actor, actor, listed, same_origin, viewer
from airflow_provider_taskq.plugins.schemas import (
    ActionRequest,
    Body,
    ExpireOptions,
    NoOptions,
    PriorityOptions,
    PushFormOptions,
    ReassignOptions,
    ReleaseOptions,
    RetryOptions,
    RevealRequest,
    describe_validation_error,
)
from airflow_provider_taskq.plugins.serializers import Document
from airflow_provider_taskq.plugins.session import ACTION_SECONDS, transaction
from airflow_provider_taskq.queue import Insertion, Result, Revival, State, TaskQueue, selection
from airflow_provider_taskq.queue.reports import STATE_OF_STATUS, TaskFilter
from airflow_provider_taskq.queue.selection import MAX_TASKS, WAKING_ACTIONS, Action, AuditedQueue, Selection

MAX_TEXT_BYTES = 64 * 1024  # of a revealed payload
MAX_REQUEST_BYTES = 2 * 1024 * 1024

TROUBLED = (State.EXPIRED, State.FAILED, State.SUSPENDED)

router = APIRouter(prefix="/api", dependencies=[Depends(viewer), Depends(listed), Depends(actor), Depends(same_origin)])
Given = TypeVar("Given", bound=Body)


async def _request_text(
    request: Request,
    user: Actor,  # noqa: ARG001
    origin: Annotated[None, Depends(same_origin)],  # noqa: ARG001
) -> bytes:
    """Return the body of the request, after the checks of the user and the origin.

    FastAPI would read a body that is a parameter before these checks.
    """
    text = b""
    async for part in request.stream():
        text += part
        if len(text) > MAX_REQUEST_BYTES:
            raise HTTPException(400, f"The request is larger than {MAX_REQUEST_BYTES:,} bytes.")
    return text


RequestText = Annotated[bytes, Depends(_request_text)]


def _parse(kind: type[Given], text: bytes) -> Given:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise HTTPException(400, describe_validation_error(error)) from None


@router.post("/{conn_id}/actions")
def act(conn_id: str, text: RequestText, user: Actor) -> Document:
    """Preview an action, or perform it if the request confirms it."""
    request = _parse(ActionRequest, text)
    with transaction(conn_id, user.get_name()) as queue:
        result = ACTIONS[request.action](queue, request)
        stamp = {"action": request.action, **serializers.stamp(queue)}
        if not request.confirm:
            queue.conn.rollback()
            preview = {"count": result.count, "capped": result.more, "token": result.token}
            return {**stamp, **preview, "sentence": f"{result.sentence}?"}
        _check_expected(result.count, request.expected)
    if request.topic is not None and request.action in WAKING_ACTIONS and result.count:
        # After the commit, so that the workers see the change. The action has succeeded also if this fails.
        with suppress(HTTPException), transaction(conn_id, user.get_name()) as queue:
            queue.notify(request.topic)
    return {**stamp, "done": result.count, "more": result.more, "sentence": f"{result.sentence}: done."}


def _check_expected(count: int, expected: int | None) -> None:
    """Refuse to change more tasks than the preview showed."""
    if expected is not None and count > expected:
        raise HTTPException(409, f"{count} tasks match now, but the preview showed {expected}: preview again.")


@router.post("/{conn_id}/reveal")
def reveal(conn_id: str, text: RequestText, user: Actor) -> Document:
    """Return the payload and the output of a task, and write an audit line."""
    request = _parse(RevealRequest, text)
    with transaction(conn_id, user.get_name()) as queue:
        texts = queue.task_texts(request.topic, request.sequence, MAX_TEXT_BYTES)
        if texts is None:
            raise HTTPException(404, f"Topic {request.topic} has no task {request.sequence}. It may have been purged.")
        queue.record_action("reveal", request.topic, f"sequence {request.sequence}", 1)
        return {
            "payload": _cut(texts.payload),
            "payload_bytes": texts.payload_bytes,
            "output": _cut(texts.output),
            "output_bytes": texts.output_bytes,
            "cut": max(texts.payload_bytes or 0, texts.output_bytes or 0) > MAX_TEXT_BYTES,
            **serializers.stamp(queue),
        }


def _cut(text: str | None) -> str | None:
    """Cut a text to MAX_TEXT_BYTES, in whole characters. Return None for None."""
    return None if text is None else text.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")


@dataclass(frozen=True, slots=True)
class PageResult:
    """The outcome of an action, or of its preview.

    :param sentence: what the action does, without the final punctuation.
    :param more: whether further tasks match the filter.
    :param token: identifies the previewed owner registration. The browser sends it back with the confirmation.
    """

    count: int
    sentence: str
    more: bool = False
    token: int | None = None


def _options(kind: type[Given], request: ActionRequest) -> Given:
    try:
        return kind.model_validate(request.options)
    except ValidationError as error:
        raise HTTPException(400, describe_validation_error(error, f"Option of {request.action}: ")) from None


def _topic(request: ActionRequest) -> str:
    if not request.topic:
        raise HTTPException(400, f"The action {request.action} needs a topic.")
    return request.topic


def _retry(queue: TaskQueue, request: ActionRequest) -> PageResult:
    revival = Revival[_options(RetryOptions, request).revival]
    how = {
        Revival.RESET: "in their old place",
        Revival.APPEND: "as copies at the end",
        Revival.SUPERSEDE: "as copies that make older waiting tasks redundant",
        Revival.REPLACE: "as copies that make all older tasks redundant",
    }[revival]
    return _change_tasks(queue, request, selection.retry(revival), f"Retry {{}}, {how}")


def _reassign(queue: TaskQueue, request: ActionRequest) -> PageResult:
    result = Result[_options(ReassignOptions, request).result]
    return _change_tasks(queue, request, selection.reassign(result), f"Give {{}} the result {result.name}")


def _set_priority(queue: TaskQueue, request: ActionRequest) -> PageResult:
    priority = _options(PriorityOptions, request).priority
    return _change_tasks(queue, request, selection.set_priority(priority), f"Give {{}} the priority {priority}")


# The actions on tasks that have no options, with {} for the tasks.
_WITHOUT_OPTIONS = {
    "purge": (selection.purge(), "Purge {} for good; running tasks stay"),
    "run_now": (selection.run_now(), "Make {} due now; due tasks stay as they are"),
    "cancel": (selection.cancel(), "Cancel {}: FILTERED without a run; a retry takes it back"),
}


def _change_without_options(queue: TaskQueue, request: ActionRequest) -> PageResult:
    _options(NoOptions, request)
    return _change_tasks(queue, request, *_WITHOUT_OPTIONS[request.action])


def _change_tasks(queue: TaskQueue, request: ActionRequest, action: Action, sentence: str) -> PageResult:
    """Preview an action on the selected tasks, or apply it. The {} in the sentence stands for the tasks."""
    chosen = _select(queue, request, action)
    result = action.apply(queue, chosen) if request.confirm else action.preview(queue, chosen)
    tasks = f"{_count_tasks(result.count)} of {chosen.topic}"
    return PageResult(result.count, sentence.format(tasks), more=chosen.more)


def _select(queue: TaskQueue, request: ActionRequest, action: Action) -> Selection:
    """Return the tasks that the request names, or that its filter finds now."""
    topic = _topic(request)
    if (request.sequences is None) == (request.filter is None):
        raise HTTPException(400, "Name the tasks either by their sequences or by a filter.")
    if request.filter is None:
        return selection.select_sequences(topic, request.sequences or ())
    if request.confirm and request.expected is None:
        raise HTTPException(400, "Set `expected` to the number of tasks that the preview showed.")
    given = request.filter.for_queue()
    states = _filtered_states(given, action)
    try:
        chosen = selection.select_filter(queue, topic, given, states, timeout=timedelta(seconds=ACTION_SECONDS))
    except TimeoutError:
        raise HTTPException(
            503, "The filter takes too long to find its tasks: narrow it by state, since or until."
        ) from None
    if request.confirm:
        _check_expected(chosen.count, request.expected)
    return chosen


def _filtered_states(given: TaskFilter, action: Action) -> Sequence[State]:
    state = given.state
    if state is None and given.status is not None:
        state = STATE_OF_STATUS.get(given.status, State.READY)
    if state is not None:
        if state not in action.states:
            allowed = ", ".join(each.name for each in action.states)
            raise HTTPException(400, f"The action {action.name} applies to tasks in {allowed}, not in {state.name}.")
        return [state]
    if action.name == "purge":
        return selection.PURGED_BY_DEFAULT
    if action.states == selection.WAITING:
        return selection.WAITING
    if given.error is not None or given.error_group is not None:
        return TROUBLED
    raise HTTPException(400, f"The action {action.name} on all tasks that match needs a filter with a state.")


def _release(queue: TaskQueue, request: ActionRequest) -> PageResult:
    name = _options(ReleaseOptions, request).owner
    owner = queue.owner(name)
    if owner is None:
        raise HTTPException(409, f"{name} has no lease. It ended, or the name was never registered.")
    if request.confirm and request.token not in (None, owner.fence):
        raise HTTPException(409, f"{name} has registered again since the preview: preview again.")
    count = AuditedQueue(queue).release(owner)
    sentence = f"End the lease of {name} and hand out its {_count_tasks(count)} to other owners"
    return PageResult(count, sentence, token=owner.fence)


def _expire(queue: TaskQueue, request: ActionRequest) -> PageResult:
    grace = timedelta(seconds=_options(ExpireOptions, request).grace_seconds)
    count = AuditedQueue(queue).expire(grace)
    return PageResult(count, f"Expire the lapsed leases, which hold {_count_tasks(count)}")


def _push(queue: TaskQueue, request: ActionRequest) -> PageResult:
    topic, given = _topic(request), _options(PushFormOptions, request)
    older = _older_tasks(queue, topic, given)
    pushed = AuditedQueue(queue).push(topic, [given.new_task()], Insertion[given.insertion], older)
    return PageResult(len(pushed), f"Push {given.identifier} to {topic}{older}")


def _older_tasks(queue: TaskQueue, topic: str, given: PushFormOptions) -> str:
    """Describe what the push does to older tasks of its identifier."""
    if given.insertion == "APPEND":
        return ""
    same = TaskFilter(identifier=given.identifier)
    older = len(queue.find_tasks(topic, same, newest=False, size=MAX_TASKS)[0])
    which = "waiting" if given.insertion == "SUPERSEDE" else "waiting or ended"
    effect = "are deleted for good" if given.insertion == "DELETE" else "become REDUNDANT"
    return f"; of {older:,} older tasks of this identifier the {which} ones {effect}" if older else ""


def _set_paused(queue: TaskQueue, request: ActionRequest) -> PageResult:
    topic = _topic(request)
    _options(NoOptions, request)
    paused = request.action == "pause"
    changed = AuditedQueue(queue).set_paused(topic, paused=paused)
    sentence = (
        f"Pause {topic}: it hands out no task until it is resumed{'' if changed else ' (paused already)'}"
        if paused
        else f"Resume {topic}: it hands out tasks again{'' if changed else ' (not paused)'}"
    )
    return PageResult(int(changed), sentence)


def _count_tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count:,} tasks"


ACTIONS: dict[str, Callable[[TaskQueue, ActionRequest], PageResult]] = {
    "retry": _retry,
    "reassign": _reassign,
    "purge": _change_without_options,
    "run_now": _change_without_options,
    "set_priority": _set_priority,
    "cancel": _change_without_options,
    "release": _release,
    "expire": _expire,
    "push": _push,
    "pause": _set_paused,
    "resume": _set_paused,
}
