"""Poll, claim, ready (sql/functions/poll.sql, turn.sql, batch.sql)."""

from airflow_provider_taskq.queue.bounds import int_size
from airflow_provider_taskq.queue.encoding import task_of
from airflow_provider_taskq.queue.errors import UnknownTopic
from airflow_provider_taskq.queue.models import Condition, Order, Owner, Task
from airflow_provider_taskq.queue.topic_status import CAP, LOOK_UP, TopicStatus
from airflow_provider_taskq.queue.verbs.call import Caller


class PollVerbs(Caller):
    """How tasks go out. A size below 1 is none; one beyond every integer is as many as there are."""

    def poll(
        self,
        topic: str,
        owner: Owner,
        size: int = 1,
        order: Order | str = Order.FIRST_IN_FIRST_OUT,
        condition: Condition | str = Condition.NONE,
    ) -> list[Task]:
        """Takes up to `size` tasks that are READY and due for the owner, and returns them in order.

        Never waits for another's transaction. UnknownTopic; LeaseLost if the lease has lapsed or is gone.
        """
        rows = self._rows(
            "SELECT * FROM taskq.poll(%s::text, %s::text, %s::bigint, %s::int, %s::text, %s::text)",
            (topic, owner.name, owner.fence, int_size(size), Order(order), Condition(condition)),
        )
        return [task_of(topic, row) for row in rows]

    def poll_batch(self, topic: str, owner: Owner, identifiers: int = 1, size: int = -1) -> dict[str, list[Task]]:
        """Takes whole groups: of up to `identifiers` identifiers the due READY tasks, in order, to be handled together.

        `size`: how many tasks of each group, -1 for all; InvalidArgument below that. Left out is an identifier with
        an ACTIVE task, with one that waits to be retried and is not due, or with a FAILED one.
        """
        groups: dict[str, list[Task]] = {}
        for row in self._rows(
            "SELECT * FROM taskq.poll_batch(%s::text, %s::text, %s::bigint, %s::int, %s::int)",
            (topic, owner.name, owner.fence, int_size(identifiers), int_size(size)),
        ):
            task = task_of(topic, row)
            groups.setdefault(task.identifier, []).append(task)
        return groups

    def claim(
        self,
        topic: str,
        owner: Owner,
        size: int,
        order: Order | str = Order.FIRST_IN_FIRST_OUT,
        condition: Condition | str = Condition.NONE,
    ) -> int:
        """Takes tasks as `poll` does, but returns only how many: for an engine that reads them elsewhere."""
        return int(
            self._value(
                "SELECT taskq.claim(%s::text, %s::text, %s::bigint, %s::int, %s::text, %s::text)",
                (topic, owner.name, owner.fence, int_size(size), Order(order), Condition(condition)),
            )
        )

    def ready(self, topic: str, limit: int = 1, condition: Condition | str = Condition.NONE) -> int:
        """How many tasks could be polled now, counted to `limit`.

        Leaves out what a poll would skip at this moment: tasks and, under a condition, identifiers that an open
        transaction holds. Takes nothing and locks nothing. A paused topic has none.
        """
        return int(
            self._value(
                "SELECT taskq.ready(%s::text, %s::int, %s::text)", (topic, int_size(limit), Condition(condition))
            )
        )

    def has_unclaimed(self, topic: str, condition: Condition | str = Condition.NONE) -> bool:
        """Whether a task could be polled now, or could be if no other poll were looking at its identifier.

        A poll under a condition holds the identifiers that it looks at until its transaction ends, also those of which
        it takes nothing. So an empty poll and `ready() == 0` do not prove that the topic is empty: ask this before you
        stop, and look again after a pause while it is True.
        """
        return bool(self._value("SELECT taskq.has_unclaimed(%s::text, %s::text)", (topic, Condition(condition))))

    def topic_status(self, topic: str, condition: Condition | str = Condition.NONE) -> TopicStatus:
        """What keeps tasks of a topic from being polled under a condition, in counts up to `topic_status.CAP`.

        Changes nothing. UnknownTopic for a topic that does not exist.
        """
        rows = self._rows(LOOK_UP, ([topic], [Condition.of(condition)], CAP))
        if not rows:
            raise UnknownTopic(f"topic {topic!r} does not exist; create it with create_topic")
        return TopicStatus(topic, *rows[0][1:])
