"""Topics: create, alter, drop, pause (sql/functions/topic.sql)."""

import json
from datetime import timedelta
from typing import Any, Unpack

from airflow_provider_taskq.queue.encoding import interval_text
from airflow_provider_taskq.queue.errors import InvalidArgument
from airflow_provider_taskq.queue.policies import (
    PolicyChanges,
    RetryPolicy,
    TopicPolicy,
    changed_fields,
    changed_policy,
    policy_fields,
)
from airflow_provider_taskq.queue.verbs.call import Caller


class TopicVerbs(Caller):
    """What can be done to a topic as a whole."""

    def create_topic(
        self,
        topic: str,
        policy: TopicPolicy = TopicPolicy(),  # noqa: B008 - frozen
        **changes: Unpack[PolicyChanges],
    ) -> bool:
        """Creates a topic; False, and the topic is left as it is, if it exists.

        `changes` are fields that differ from `policy`: `create_topic("orders", max_attempts=5)`.
        """
        return bool(
            self._value(
                "SELECT taskq.create_topic(%s::text, %s::int, %s::interval, %s::float8, %s::interval, %s::interval,"
                " %s::interval, %s::float8, %s::boolean, %s::text, %s::int, %s::int, %s::interval, %s::boolean)",
                (topic, *map(_stored, policy_fields(changed_policy(policy, changes)).values())),
            )
        )

    def alter_topic(self, topic: str, policy: TopicPolicy | None = None, **changes: Unpack[PolicyChanges]) -> None:
        """Changes a topic's policy; what is already scheduled keeps its time.

        Either `policy` replaces the whole policy, or `changes` name the fields to change, and the others stay as they
        are, also if another transaction changes these at the same time: `alter_topic("orders", max_attempts=5)`.
        The names are the fields of TopicPolicy and of RetryPolicy; `retry=RetryPolicy(...)` changes all of the latter.
        Durations may be texts such as `90s`. UnknownTopic; InvalidArgument for an unknown or a wrong field.
        """
        if (policy is None) == (not changes):
            raise InvalidArgument("alter_topic takes either a policy, or the fields to change such as max_attempts=5")
        altered = changed_fields(changes) if policy is None else policy_fields(policy)
        document = json.dumps({name: _as_text(value) for name, value in altered.items()})
        self._rows("SELECT taskq.alter_topic(%s::text, %s::jsonb)", (topic, document))

    def topics(self) -> list[str]:
        """The names of all topics, in alphabetical order."""
        return [name for (name,) in self._rows("SELECT * FROM taskq.topics()")]

    def policy(self, topic: str) -> TopicPolicy:
        """A topic's policy."""
        row = self._rows(
            "SELECT max_attempts, base, factor, max_delay, horizon, max_elapsed, jitter, probe,"
            " on_expiry, max_crashes, max_payload_bytes, ttl, notify FROM taskq.policy_of(%s::text)",
            (topic,),
        )[0]
        return TopicPolicy(RetryPolicy(*row[:8]), *row[8:])

    def drop_topic(self, topic: str) -> bool:
        """Removes a topic with all its tasks, held ones too; False where there is none.

        Waits for up to a minute for transactions that push to the topic, hold its tasks or store progress of its
        readers, and for no longer than the session's `lock_timeout`. TaskQueueError, with a session in the way, if they
        do not end. It gives way to a transaction of several verbs that waits for it: none of these ends in a deadlock.

        Instant, on a connection in autocommit, for a topic that has partitions of its own.
        """
        return bool(self._value("SELECT taskq.drop_topic(%s::text, %s::boolean)", (topic, self._alone)))

    def pause_topic(self, topic: str) -> bool:
        """Lets a topic hand out nothing, while it takes pushes and completions; False if it was paused already."""
        return bool(self._value("SELECT taskq.set_paused(%s::text, true)", (topic,)))

    def resume_topic(self, topic: str) -> bool:
        """Lets a paused topic hand out tasks again; False if it was not paused."""
        return bool(self._value("SELECT taskq.set_paused(%s::text, false)", (topic,)))


def _stored(value: Any) -> Any:
    """The value of a field of a policy as an argument of a function of SQL."""
    return interval_text(value) if isinstance(value, timedelta) else value


def _as_text(value: Any) -> str | bool | None:
    """The same in JSON: as a text, as JSON has no infinite numbers."""
    return value if value is None or isinstance(value, bool) else str(_stored(value))
