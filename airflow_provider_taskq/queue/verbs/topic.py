"""Topics: create, alter, drop, pause (sql/functions/topic.sql)."""

from typing import Any

from airflow_provider_taskq.queue.policy import RetryPolicy, TopicPolicy
from airflow_provider_taskq.queue.verbs.call import Caller
from airflow_provider_taskq.queue.wire import interval_text


class TopicVerbs(Caller):
    """What can be done to a topic as a whole."""

    def create_topic(self, topic: str, policy: TopicPolicy = TopicPolicy()) -> bool:  # noqa: B008 - frozen
        """Creates a topic; False, and the topic is left as it is, where it exists."""
        return bool(
            self._value(
                "SELECT taskq.create_topic(%s::text, %s::int, %s::interval, %s::float8, %s::interval, %s::interval,"
                " %s::interval, %s::float8, %s::boolean, %s::text, %s::int, %s::int, %s::interval)",
                (topic, *_columns(policy)),
            )
        )

    def alter_topic(self, topic: str, policy: TopicPolicy) -> None:
        """Replaces a topic's policy; what is already scheduled keeps its time."""
        self._rows(
            "SELECT taskq.alter_topic(%s::text, %s::int, %s::interval, %s::float8, %s::interval, %s::interval,"
            " %s::interval, %s::float8, %s::boolean, %s::text, %s::int, %s::int, %s::interval)",
            (topic, *_columns(policy)),
        )

    def topics(self) -> list[str]:
        """The names of all topics, in alphabetical order."""
        return [name for (name,) in self._rows("SELECT * FROM taskq.topics()")]

    def policy(self, topic: str) -> TopicPolicy:
        """A topic's policy."""
        row = self._rows(
            "SELECT max_attempts, base, factor, max_delay, horizon, max_elapsed, jitter, probe,"
            " on_expiry, max_crashes, max_payload_bytes, ttl FROM taskq.policy_of(%s::text)",
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


def _columns(policy: TopicPolicy) -> tuple[Any, ...]:
    """A policy in the order of the arguments of taskq.create_topic."""
    retry = policy.retry
    return (
        retry.max_attempts,
        interval_text(retry.base),
        retry.factor,
        interval_text(retry.max_delay),
        interval_text(retry.horizon),
        interval_text(retry.max_elapsed),
        retry.jitter,
        retry.probe,
        policy.on_expiry,
        policy.max_crashes,
        policy.max_payload_bytes,
        interval_text(policy.ttl),
    )
