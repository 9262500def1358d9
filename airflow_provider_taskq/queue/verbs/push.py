"""Push (sql/functions/push.sql)."""

from collections.abc import Iterable
from contextlib import nullcontext
from itertools import chain, islice

from airflow_provider_taskq.queue.models import Insertion, Pushed, Task
from airflow_provider_taskq.queue.task_fields import TaskInput, new_tasks
from airflow_provider_taskq.queue.task_input import Chunk, chunks
from airflow_provider_taskq.queue.verbs.call import Caller, all_or_nothing


class PushVerbs(Caller):
    """How tasks come in."""

    def push(self, topic: str, tasks: Iterable[TaskInput], insertion: Insertion | str = Insertion.APPEND) -> list[Task]:
        """Stores tasks at the end of a topic, all or none, and returns them in input order.

        A task is an identifier, a NewTask, or a dict of the fields of NewTask: `available_at` may be a text in
        ISO 8601 there, `delay` and `ttl` seconds or a text such as 90s.

        Under DELETE a task whose identifier comes again later in the push is not
        stored, and not returned. UnknownTopic; InvalidTask, naming the position of the task, counted from 0.
        """
        insertion, given = Insertion(insertion), list(new_tasks(topic, tasks))
        cut = list(chunks(topic, given))
        sequences: list[int | None] = []
        if len(cut) == 1:
            sequences = self._push_chunk(topic, cut[0], insertion, None)
        elif cut:
            with all_or_nothing(self.conn):
                for chunk in cut:
                    sequences += self._push_chunk(topic, chunk, insertion, _first(sequences))
        if insertion is Insertion.DELETE:  # a later chunk deletes what an earlier one stored
            last = {task.identifier: place for place, task in enumerate(given)}
            sequences = [n if last[given[place].identifier] == place else None for place, n in enumerate(sequences)]
        return [
            Task(sequence, topic, task.identifier, task.payload, task.reference, 0, False)
            for task, sequence in zip(given, sequences, strict=True)
            if sequence is not None
        ]

    def push_stream(
        self, topic: str, tasks: Iterable[TaskInput], insertion: Insertion | str = Insertion.APPEND
    ) -> Pushed:
        """The same as `push` for an iterator of any length, in bounded memory."""
        count, first, last = 0, None, None
        insertion, pieces = Insertion(insertion), chunks(topic, new_tasks(topic, tasks))
        begun = list(islice(pieces, 2))
        with all_or_nothing(self.conn) if len(begun) > 1 else nullcontext():
            for chunk in chain(begun, pieces):
                stored = [n for n in self._push_chunk(topic, chunk, insertion, first) if n is not None]
                count += len(chunk.tasks)
                first = first if first is not None else min(stored, default=None)
                last = max(stored, default=last)
            if (
                insertion is Insertion.DELETE and first is not None and len(begun) > 1
            ):  # a later one may have deleted it
                first = self._value("SELECT taskq.first_pushed(%s::text, %s::bigint)", (topic, first))
        return Pushed(count, first, last)

    def wake(self, topic: str) -> None:
        """Tells watchers that wait on a topic to look at once, rather than at their next look.

        Call it after the commit of what was pushed, outside of any transaction that takes long. Nothing depends on it.
        """
        self._rows("SELECT taskq.wake(%s::text)", (topic,))

    def _push_chunk(self, topic: str, chunk: Chunk, insertion: Insertion, since: int | None) -> list[int | None]:
        """The sequences of one chunk's tasks, None for one not stored; `since`: the first of the whole push.

        Arrays travel in binary: psycopg's text format for them costs fifty times as much a value.
        """
        single = chunk.single() if insertion is Insertion.APPEND else None
        if single:
            return [
                self._value(
                    "SELECT taskq.push_one(%s::text, %s::text, %s::text, %s::text, %s::timestamptz, %s::text::interval,"
                    " %s::text::interval, %s::int)",
                    (topic, *single),
                )
            ]
        stored: list[int | None] = self._value(
            "SELECT taskq.push(%s::text, %s::text, %b::text[], %b::text[], %b::text[], %b::boolean[],"
            " %b::timestamptz[], %b::text[]::interval[], %b::text[]::interval[], %b::int[], %s::int, %s::bigint,"
            " %b::int[], %b::text[], %b::text[])",
            (topic, insertion, *chunk.columns(), chunk.offset, since, *chunk.dependencies()),
        )
        return stored


def _first(sequences: list[int | None]) -> int | None:
    """The lowest sequence stored so far."""
    return next((sequence for sequence in sequences if sequence is not None), None)
