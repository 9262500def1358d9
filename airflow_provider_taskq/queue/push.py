"""Push and offer: the verbs that store tasks."""

from collections.abc import Iterable
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import LiteralString, Never

import psycopg
from psycopg.rows import TupleRow, tuple_row

from airflow_provider_taskq.queue.connection import FunctionCaller, all_or_nothing, open_cursor
from airflow_provider_taskq.queue.errors import translate_errors
from airflow_provider_taskq.queue.models import Insertion, Json, Offered, Outcome, Pushed, Task
from airflow_provider_taskq.queue.task_input import (
    TaskChunk,
    TaskInput,
    refuse_unknown_options,
    split_into_chunks,
    to_new_tasks,
)

# Arrays travel in binary: psycopg's text format costs fifty times as much for each value.
_PUSH: LiteralString = (
    "SELECT taskq.push(%s::text, %s::text, %b::text[], %b::text[], %b::text[], %b::boolean[], %b::timestamptz[],"
    " %b::text[]::interval[], %b::text[]::interval[], %b::int[], %s::int, %s::bigint, %b::int[], %b::text[],"
    " %b::text[])"
)


class PushMixin(FunctionCaller):
    """Push, offer and drop."""

    def push(
        self,
        topic: str,
        tasks: Iterable[TaskInput],
        insertion: Insertion | str = Insertion.APPEND,
        **unknown: Never,
    ) -> list[Task]:
        """Store tasks at the end of a topic, all or none, and return them in input order.

        :param tasks: identifiers, NewTasks, or dicts of the fields of NewTask. In a dict `available_at` may be a text
            in ISO 8601, and `delay` and `ttl` may be seconds or a text such as 90s.
        :param insertion: what happens to older tasks of the same identifiers. Under DELETE, a task whose identifier
            comes again later in the push is neither stored nor returned.
        :raises InvalidTask: for a task that breaks a rule. The message has the position of the task, counted from 0.
        :raises InvalidArgument: for another insertion, or an option that does not exist.
        """
        refuse_unknown_options("push", unknown, "insertion")
        insertion, given = Insertion(insertion), list(to_new_tasks(topic, tasks))
        chunks = split_into_chunks(topic, given, self.json_encoder())
        head = list(islice(chunks, 2))
        sequences: list[int | None] = []
        with all_or_nothing(self.conn) if len(head) > 1 else nullcontext():
            if len(head) > 1 and insertion is Insertion.APPEND and psycopg.Pipeline.is_supported():
                sequences = self._append_in_pipeline(topic, chain(head, chunks))
            else:
                for chunk in chain(head, chunks):
                    first = next((sequence for sequence in sequences if sequence is not None), None)
                    sequences += self._push_chunk(topic, chunk, insertion, first)
        if insertion is Insertion.DELETE:  # a later chunk deletes what an earlier one stored
            last = {task.identifier: place for place, task in enumerate(given)}
            sequences = [n if last[given[place].identifier] == place else None for place, n in enumerate(sequences)]
        return [
            Task(sequence, topic, task.identifier, task.payload, task.reference, 0, False)
            for task, sequence in zip(given, sequences, strict=True)
            if sequence is not None
        ]

    def push_stream(
        self,
        topic: str,
        tasks: Iterable[TaskInput],
        insertion: Insertion | str = Insertion.APPEND,
        **unknown: Never,
    ) -> Pushed:
        """Push an iterator of any length in bounded memory, all or none; the parameters are those of `push`."""
        refuse_unknown_options("push_stream", unknown, "insertion")
        count, first, last = 0, None, None
        chunks = split_into_chunks(topic, to_new_tasks(topic, tasks), self.json_encoder())
        insertion = Insertion(insertion)
        head = list(islice(chunks, 2))
        with all_or_nothing(self.conn) if len(head) > 1 else nullcontext():
            for chunk in chain(head, chunks):
                stored = [n for n in self._push_chunk(topic, chunk, insertion, first) if n is not None]
                count += len(chunk.tasks)
                first = first if first is not None else min(stored, default=None)
                last = max(stored, default=last)
            if insertion is Insertion.DELETE and first is not None and len(head) > 1:
                # A later chunk may have deleted the first task.
                first = self._value("SELECT taskq.first_pushed(%s::text, %s::bigint)", (topic, first))
        return Pushed(count, first, last)

    def notify(self, topic: str) -> None:
        """Notify the workers and sensors that listen, so that they poll the topic at once instead of after their pause.

        Call this method after the commit of a push, and outside of a long transaction. Nothing depends on the
        notification.
        """
        self._rows("SELECT taskq.notify(%s::text)", (topic,))

    def offer(
        self,
        topic: str,
        identifier: str,
        payload: Json = None,
        *,
        if_exists: str = "update",
        reference: str | None = None,
        available_at: datetime | str | None = None,
        delay: timedelta | float | str | None = None,
        ttl: timedelta | float | str | None = None,
        priority: int = 0,
        **unknown: Never,
    ) -> Offered:
        """Store a task. If a task of the identifier waits already, update or ignore that task instead.

        A waiting task is READY and not held; scheduled tasks and tasks that wait to be retried are waiting tasks.
        Without `available_at` and `delay` the task is due at once; a task that is due already keeps its place. Among
        the transactions that offer there is at most one waiting task per identifier: an offer waits until an open
        transaction that offered the identifier ends. A task that an open poll is claiming counts as held, and the
        offer creates a task.

        :param if_exists: "update" gives the waiting task the payload, reference, ttl, priority and schedule of the
            offer, under the same sequence; "ignore" leaves the waiting task as it is; "ignore_held" leaves a waiting or
            a held task as it is.
        :param available_at: the moment, or a text in ISO 8601.
        :param delay: as in `NewTask`, or seconds, or a text such as 90s; `ttl` likewise.
        :return: CREATED, UPDATED, or IGNORED if nothing changed, with the sequence.
        :raises InvalidTask: for a task that breaks a rule of `push`.
        :raises InvalidArgument: for another `if_exists`, or an option that does not exist.
        :raises TaskQueueError: above READ COMMITTED.
        """
        refuse_unknown_options("offer", unknown, "if_exists", "reference", "available_at", "delay", "ttl", "priority")
        task = {"identifier": identifier, "payload": payload, "reference": reference, "available_at": available_at}
        task |= {"delay": delay, "ttl": ttl, "priority": priority}
        return self.offer_many(topic, [task], if_exists=if_exists)[0]

    def offer_many(
        self, topic: str, tasks: Iterable[TaskInput], *, if_exists: str = "update", **unknown: Never
    ) -> list[Offered]:
        """Offer many tasks, all or none. Return the outcomes in input order.

        If an identifier comes again, the later offer meets the task of the earlier one. Two calls never deadlock with
        each other.

        :param tasks: as in `push`.
        :raises InvalidTask: for a task that breaks a rule of `push`, is suspended, or depends on others.
        :raises InvalidArgument: for another `if_exists`, or an option that does not exist.
        :raises TaskQueueError: above READ COMMITTED.
        """
        refuse_unknown_options("offer_many", unknown, "if_exists")
        chunks = list(split_into_chunks(topic, to_new_tasks(topic, tasks), self.json_encoder()))
        for chunk in chunks:
            chunk.require_offerable()
        offered: list[Offered] = []
        with all_or_nothing(self.conn) if len(chunks) > 1 else nullcontext():
            if len(chunks) > 1:  # each call locks its identifiers in order, several calls would not
                identifiers = [identifier for chunk in chunks for identifier in chunk.identifiers()]
                self._rows("SELECT taskq.lock_offers(%s::text, %b::text[])", (topic, identifiers))
            for chunk in chunks:
                offered += self._offer_chunk(topic, chunk, if_exists)
        return offered

    def drop(self, topic: str, identifier: str) -> bool:
        """Remove the waiting tasks of an identifier. Return False if there are none.

        Held and ended tasks stay. If all tasks of the identifier were offered, at most one task waits. The call waits
        until an open transaction that offered the identifier ends.

        :raises TaskQueueError: above READ COMMITTED.
        """
        return self._flag("SELECT taskq.drop(%s::text, %s::text)", (topic, identifier))

    def _push_chunk(
        self, topic: str, chunk: TaskChunk, insertion: Insertion, first_of_push: int | None
    ) -> list[int | None]:
        """Push one chunk. Return the sequences of its tasks, with None for a task that was not stored."""
        single = chunk.single() if insertion is Insertion.APPEND else None
        if single:
            return [
                self._value(
                    "SELECT taskq.push(%s::text, %s::text, %s::text, %s::text, available_at => %s::timestamptz,"
                    " delay => %s::text::interval, ttl => %s::text::interval, priority => %s::int)",
                    (topic, *single),
                )
            ]
        stored: list[int | None] = self._value(_PUSH, _push_arguments(topic, chunk, insertion, first_of_push))
        return stored

    def _append_in_pipeline(self, topic: str, chunks: Iterable[TaskChunk]) -> list[int | None]:
        """Push chunks with APPEND, and wait for the results at the end.

        So the server stores a chunk while this process encodes the next one. The other insertions cannot do so: each
        chunk names the first task of the first one.
        """
        sent: list[psycopg.Cursor[TupleRow]] = []
        with translate_errors(), self.conn.pipeline():
            try:
                for chunk in chunks:
                    cursor = open_cursor(self.conn, tuple_row)
                    sent.append(cursor)
                    cursor.execute(_PUSH, _push_arguments(topic, chunk, Insertion.APPEND, None), prepare=False)
                return [sequence for cursor in sent for sequence in cursor.fetchall()[0][0]]
            except Exception:
                for cursor in sent:  # psycopg would log the errors of the chunks after the one that failed
                    with suppress(psycopg.Error):
                        cursor.fetchall()
                raise

    def _offer_chunk(self, topic: str, chunk: TaskChunk, if_exists: str) -> list[Offered]:
        identifiers, payloads, references, _, *rest = chunk.columns()
        [(outcomes, sequences)] = self._rows(
            "SELECT outcomes, sequences FROM taskq.offer_many(%s::text, %s::text, %b::text[], %b::text[], %b::text[],"
            " %b::timestamptz[], %b::text[]::interval[], %b::text[]::interval[], %b::int[], %s::int)",
            (topic, if_exists, identifiers, payloads, references, *rest, chunk.offset),
        )
        return [Offered(Outcome(outcome), sequence) for outcome, sequence in zip(outcomes, sequences, strict=True)]


def _push_arguments(
    topic: str, chunk: TaskChunk, insertion: Insertion, first_of_push: int | None
) -> tuple[object, ...]:
    return (topic, insertion, *chunk.columns(), chunk.offset, first_of_push, *chunk.dependencies())
