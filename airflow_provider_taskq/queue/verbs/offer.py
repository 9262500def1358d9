"""Offer and drop (sql/functions/offer.sql)."""

from collections.abc import Iterable
from contextlib import nullcontext
from datetime import datetime, timedelta

from airflow_provider_taskq.queue.models import Json, NewTask, Offered, Outcome
from airflow_provider_taskq.queue.task_fields import TaskInput, new_tasks
from airflow_provider_taskq.queue.task_input import Chunk, chunks
from airflow_provider_taskq.queue.verbs.call import Caller, all_or_nothing


class OfferVerbs(Caller):
    """The unique-key queue: one waiting task per identifier."""

    def offer(
        self,
        topic: str,
        identifier: str,
        payload: Json = None,
        *,
        if_exists: str = "update",
        reference: str | None = None,
        available_at: datetime | None = None,
        delay: timedelta | None = None,
        ttl: timedelta | None = None,
        priority: int = 0,
    ) -> Offered:
        """Stores a task, unless a task of the identifier waits already: then updates or ignores that one.

        A waiting task is READY and not held; scheduled tasks and tasks that wait to be retried are waiting tasks.
        `if_exists="update"` gives the waiting task the payload, reference, ttl, priority and schedule of the offer,
        under the same sequence; `"ignore"` leaves the waiting task as it is. Without `available_at` and `delay` the
        task is due at once; a task that is due already keeps its place. Among the transactions that offer there is at
        most one waiting task per identifier: an offer waits until an open transaction that offered the identifier
        ends. A task that an open poll is claiming counts as held, and the offer creates a task.

        Returns CREATED, UPDATED, or IGNORED if nothing changed, with the sequence. UnknownTopic; InvalidTask;
        InvalidArgument for another `if_exists`; TaskQueueError above READ COMMITTED.
        """
        task = NewTask(identifier, payload, reference, False, available_at, delay, ttl, priority)
        return self.offer_many(topic, [task], if_exists=if_exists)[0]

    def offer_many(self, topic: str, tasks: Iterable[TaskInput], *, if_exists: str = "update") -> list[Offered]:
        """Offers many tasks, all or none, and returns what each offer did, in input order.

        Tasks are identifiers, NewTasks or dicts, as of `push`. If an identifier comes again, the later offer meets the
        task of the earlier one. Two calls never wait for each other in a circle. InvalidTask for a task that is
        suspended or depends on others.
        """
        cut = list(chunks(topic, new_tasks(topic, tasks)))
        for chunk in cut:
            chunk.refuse_beyond_offer()
        offered: list[Offered] = []
        with all_or_nothing(self.conn) if len(cut) > 1 else nullcontext():
            if len(cut) > 1:  # each call locks in order, several calls would not
                identifiers = [identifier for chunk in cut for identifier in chunk.identifiers()]
                self._rows("SELECT taskq.lock_offers(%s::text, %b::text[])", (topic, identifiers))
            for chunk in cut:
                offered += self._offer_chunk(topic, chunk, if_exists)
        return offered

    def drop(self, topic: str, identifier: str) -> bool:
        """Removes what waits under an identifier; False if nothing does. Tasks that are held or have ended stay.

        If all tasks of the identifier were offered, there is at most one. Waits until an open transaction that offered
        the identifier ends. UnknownTopic; TaskQueueError above READ COMMITTED.
        """
        return bool(self._value("SELECT taskq.drop(%s::text, %s::text)", (topic, identifier)))

    def _offer_chunk(self, topic: str, chunk: Chunk, if_exists: str) -> list[Offered]:
        identifiers, payloads, references, _, *rest = chunk.columns()
        [(outcomes, sequences)] = self._rows(
            "SELECT outcomes, sequences FROM taskq.offer_many(%s::text, %s::text, %b::text[], %b::text[], %b::text[],"
            " %b::timestamptz[], %b::text[]::interval[], %b::text[]::interval[], %b::int[], %s::int)",
            (topic, if_exists, identifiers, payloads, references, *rest, chunk.offset),
        )
        return [Offered(Outcome(outcome), sequence) for outcome, sequence in zip(outcomes, sequences, strict=True)]
