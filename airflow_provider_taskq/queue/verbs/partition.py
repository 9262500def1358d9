"""Partitions of their own for busy topics (sql/functions/partition.sql)."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg

from airflow_provider_taskq.queue.errors import TaskQueueError
from airflow_provider_taskq.queue.verbs.call import Caller
from airflow_provider_taskq.queue.wire import interval_text

PATIENCE = timedelta(minutes=1)
MOST = 1_000


class PartitionVerbs(Caller):
    """Where a topic's tasks are kept: with those of all others, or in tables of their own."""

    def own_partition(self, topic: str, patience: timedelta = PATIENCE) -> bool:
        """Gives a topic tables of its own, with all its tasks; False where it has them.

        Pauses the topic, waits until nothing of it is held, moves it, and resumes it. Meanwhile it hands out
        nothing, pushes to it wait, and reviving or purging its tasks fails; other topics wait for milliseconds.
        Works in several transactions, so it takes a connection in autocommit that is not shared by a transaction
        pooler. TaskQueueError, and all is as it was, where something stays in the way for longer than `patience`.
        """
        self._need_a_session_of_its_own()
        if self._value("SELECT taskq.topic_is_apart(%s::text)", (topic,)):
            return False
        with self._still(topic, patience):
            try:
                self._move(topic, patience)
            except BaseException as error:
                self._undo(topic, patience, error)
                raise
        return True

    def shared_partition(self, topic: str, most: int = MOST, patience: timedelta = PATIENCE) -> bool:
        """Puts a topic back among the others; False where it is there.

        All topics wait while its tasks move, so a topic of more than `most` tasks is refused. For a connection in
        autocommit.
        """
        self._need_autocommit()
        return bool(
            self._value(
                "SELECT taskq.move_back(%s::text, %s::bigint, %s::text::interval)",
                (topic, most, interval_text(patience)),
            )
        )

    def drop_vacant_partitions(self, patience: timedelta = PATIENCE) -> int:
        """Drops the tables that dropped topics had for themselves, and returns how many topics those were.

        For a connection in autocommit.
        """
        self._need_autocommit()
        return int(self._value("SELECT taskq.drop_vacant(%s::text::interval)", (interval_text(patience),)))

    def _move(self, topic: str, patience: timedelta) -> None:
        """Moves a topic that stands still, in three transactions."""
        bounded = (topic, interval_text(patience))
        self._rows("SELECT taskq.make_tables(%s::text)", (topic,))
        deadline = time.monotonic() + patience.total_seconds()
        while not self._value("SELECT taskq.close_shared(%s::text, %s::text::interval)", bounded):
            # A poll that had begun before the pause took some after all were given back.
            if time.monotonic() > deadline:
                raise TaskQueueError(f"tasks of topic {topic!r} are held again and again: try again")
            self._await_nothing_held(topic, patience)
        self._rows("SELECT taskq.move_rows(%s::text, %s::text::interval)", bounded)

    def _undo(self, topic: str, patience: timedelta, error: BaseException) -> None:
        """Puts back what was changed for a move that failed; where that fails as well, the error says so."""
        try:
            self._rows("SELECT taskq.open_shared(%s::text, %s::text::interval)", (topic, interval_text(patience)))
        except (TaskQueueError, psycopg.Error) as another:
            error.add_note(
                f"nor could this be undone ({another}): the topic {topic!r} takes no pushes"
                " until own_partition is called again, or taskq.open_shared"
            )

    @contextmanager
    def _still(self, topic: str, patience: timedelta) -> Iterator[None]:
        """Pauses a topic and, once nothing of it is held, keeps pushes out: by a lock of this session."""
        paused = self._value("SELECT taskq.set_paused(%s::text, true)", (topic,))
        try:
            self._await_nothing_held(topic, patience)
            number = self._value(
                "SELECT taskq.keep_out(%s::text, %s::text::interval)", (topic, interval_text(patience))
            )
            try:
                yield
            finally:
                self._value("SELECT taskq.let_in(%s::int)", (number,))
        finally:
            if paused:
                self._value("SELECT taskq.set_paused(%s::text, false)", (topic,))

    def _await_nothing_held(self, topic: str, patience: timedelta) -> None:
        deadline = time.monotonic() + patience.total_seconds()
        while self._value("SELECT taskq.topic_is_held(%s::text)", (topic,)):
            if time.monotonic() > deadline:
                raise TaskQueueError(
                    f"tasks of topic {topic!r} are still held after {patience}: complete or release them"
                )
            time.sleep(0.05)  # nothing tells when the last holder is done

    def _need_autocommit(self) -> None:
        """Refuses a connection in a transaction, for whose end everybody would wait."""
        if not self._alone:
            raise TaskQueueError("all wait for the end of such a transaction: use a connection in autocommit")

    def _need_a_session_of_its_own(self) -> None:
        """Refuses a pooler that gives each transaction another session, too."""
        self._need_autocommit()
        if self._value("SELECT pg_backend_pid()") != self.conn.info.backend_pid:
            raise TaskQueueError("a topic moves under a lock of the session: connect without a transaction pooler")
