"""What can be done, previewed and then confirmed, each in one transaction with its line in the trail."""

from contextlib import suppress
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Request
from pydantic import ValidationError

from airflow_provider_taskq.plugins import serializers
from airflow_provider_taskq.plugins.auth import Actor, actor, listed, same_origin, viewer
from airflow_provider_taskq.plugins.doing import DOINGS
from airflow_provider_taskq.plugins.schemas import Asked, Body, Reveal, sentence_of
from airflow_provider_taskq.plugins.serializers import Shape
from airflow_provider_taskq.plugins.session import Refusal, acting

SHOWN = 64 * 1024  # bytes of a payload
BODY = 2 * 1024 * 1024  # bytes of a request
WAKING = ("push", "resume", "retry", "run_now")  # after which there may be something to poll

router = APIRouter(prefix="/api", dependencies=[Depends(viewer), Depends(listed), Depends(actor), Depends(same_origin)])
Given = TypeVar("Given", bound=Body)


async def _text(request: Request, user: Actor, origin: Annotated[None, Depends(same_origin)]) -> bytes:  # noqa: ARG001
    """The body, read once it is known that whoever sends it may: FastAPI would look into it before."""
    text = b""
    async for part in request.stream():
        text += part
        if len(text) > BODY:
            raise Refusal(400, "The request is too large.")
    return text


Text = Annotated[bytes, Depends(_text)]


def _parsed(kind: type[Given], text: bytes) -> Given:
    """What a body says; what is wrong with it in a sentence, without its values."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise Refusal(400, sentence_of(error)) from None


@router.post("/{conn_id}/actions")
def act(conn_id: str, text: Text, user: Actor) -> Shape:
    """Says what an action would do, or does it."""
    asked = _parsed(Asked, text)
    with acting(conn_id, user.get_name()) as queue:
        deed = DOINGS[asked.action](queue, asked, dry=not asked.confirm)
        stamp = {"action": asked.action, "as_of": serializers.moment(queue.now())}
        if not asked.confirm:
            queue.conn.rollback()
            told = {"count": deed.count, "capped": deed.more, "sentence": f"{deed.sentence}?", "token": deed.token}
            return {**stamp, **told}
        if asked.expected is not None and deed.count > asked.expected:
            raise Refusal(409, f"{deed.count} tasks match now, and {asked.expected} did when you looked: look again.")
        queue.record_action(asked.action, asked.topic, deed.what, deed.count)
    if asked.topic is not None and asked.action in WAKING and deed.count:
        _wake(conn_id, user.get_name(), asked.topic)
    return {**stamp, "done": deed.count, "more": deed.more, "sentence": f"{deed.sentence}: done."}


def _wake(conn_id: str, user: str, topic: str) -> None:
    """Tells who waits for a topic, after the commit, as they have to see it. What is done is done where that fails."""
    with suppress(Refusal), acting(conn_id, user) as queue:
        queue.notify(topic)


@router.post("/{conn_id}/reveal")
def reveal(conn_id: str, text: Text, user: Actor) -> Shape:
    """A task's payload and output; who looked stands in the trail."""
    asked = _parsed(Reveal, text)
    with acting(conn_id, user.get_name()) as queue:
        texts = queue.task_texts(asked.topic, asked.sequence, SHOWN)
        if texts is None:
            raise Refusal(404, f"Topic {asked.topic} has no task {asked.sequence}: it was never there, or was purged.")
        queue.record_action("reveal", asked.topic, f"sequence {asked.sequence}", 1)
        payload, output = _cut(texts.payload), _cut(texts.output)
        return {
            "payload": payload,
            "payload_bytes": texts.payload_bytes,
            "output": output,
            "output_bytes": texts.output_bytes,
            "cut": max(texts.payload_bytes or 0, texts.output_bytes or 0) > SHOWN,
            "as_of": serializers.moment(queue.now()),
        }


def _cut(text: str | None) -> str | None:
    """At most so many bytes of a text, whole characters."""
    return None if text is None else text.encode()[:SHOWN].decode(errors="ignore")
