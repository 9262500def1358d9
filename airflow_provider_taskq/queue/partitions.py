"""Partitions of their own for busy topics (sql/api/partitions.sql)."""

import time
from contextlib import suppress
from datetime import timedelta
from typing import LiteralString

import psycopg

from airflow_provider_taskq.queue.connection import FunctionCaller
from airflow_provider_taskq.queue.encoding import interval_text
from airflow_provider_taskq.queue.errors import TaskQueueError

PATIENCE = timedelta(minutes=1)
MOST = 1_000

_MAKE_TABLES = "SELECT taskq.create_own_tables(%s::text, %s::bigint, %s::text::interval)"
_CLOSE_SHARED = "SELECT taskq.close_shared_tables(%s::text, %s::bigint, %s::text::interval)"
_MOVE_ROWS = "SELECT taskq.move_to_own_tables(%s::text, %s::bigint, %s::text::interval)"
_UNDO = "SELECT taskq.undo_partition_move(%s::text, %s::bigint, %s::text::interval)"


class PartitionMixin(FunctionCaller):
    """Where a topic's tasks are kept: with those of all others, or in tables of their own."""

    def own_partition(self, topic: str, patience: timedelta = PATIENCE) -> bool:
        """Gives a topic tables of its own, with all its tasks; False where it has them.

        Pauses the topic, waits until nothing of it is held, moves it, and resumes it if it was not paused before.
        Meanwhile it hands out nothing, pushes to it wait, and reviving or purging its tasks fails; other topics wait
        for milliseconds. Works in several transactions, so it takes a connection in autocommit that is not shared by a
        transaction pooler. If an earlier call was killed, this call finishes its move.

        TaskQueueError, and all is as it was, if another session moves the topic, or if something stays in the way for
        longer than `patience`.
        """
        self._need_a_session_of_its_own()
        token = self._value(
            "SELECT taskq.begin_partition_move(%s::text, %s::text::interval)", (topic, interval_text(patience))
        )
        if token is None:
            return False
        try:
            self._move(topic, token, patience)
        except BaseException as error:
            self._undo(topic, token, patience, error)
            raise
        finally:
            with suppress(psycopg.OperationalError):  # a session that has ended holds no lock
                self._value("SELECT taskq.end_move_session(%s::bigint)", (token,))
        return True

    def shared_partition(self, topic: str, most: int = MOST, patience: timedelta = PATIENCE) -> bool:
        """Puts a topic back among the others; False where it is there.

        All topics wait while its tasks move, so a topic of more than `most` tasks is refused. For a connection in
        autocommit. If an `own_partition` of the topic was killed, this call undoes its move, and returns True.

        TaskQueueError, and all is as it was, if another session moves the topic, or if something stays in the way for
        longer than `patience`.
        """
        self._need_autocommit()
        return bool(
            self._value(
                "SELECT taskq.move_to_shared_tables(%s::text, %s::bigint, %s::text::interval)",
                (topic, most, interval_text(patience)),
            )
        )

    def drop_vacant_partitions(self, patience: timedelta = PATIENCE) -> int:
        """Drops the tables that dropped topics had for themselves, and returns how many topics those were.

        For a connection in autocommit.
        """
        self._need_autocommit()
        return int(self._value("SELECT taskq.drop_vacant_tables(%s::text::interval)", (interval_text(patience),)))

    def _move(self, topic: str, token: int, patience: timedelta) -> None:
        """Moves a topic that is paused, as soon as nothing of it is held and no push to it is open."""
        deadline = time.monotonic() + patience.total_seconds()
        self._await_nothing_held(topic, patience)
        self._step(_MAKE_TABLES, topic, token, patience)
        while not self._try_to_move(topic, token, patience):
            if time.monotonic() > deadline:
                raise TaskQueueError(
                    f"topic {topic!r} cannot move: its tasks are held again and again, or transactions that use other"
                    " topics push to it: repeat this when they have ended"
                )
            self._await_nothing_held(topic, patience)

    def _try_to_move(self, topic: str, token: int, patience: timedelta) -> bool:
        """Moves a topic while pushes to it wait; False if they have to go on before."""
        number = self._value("SELECT taskq.lock_pushes(%s::text, %s::text::interval)", (topic, interval_text(patience)))
        try:
            # A poll that started before the pause may have taken some after all were given back.
            return self._step(_CLOSE_SHARED, topic, token, patience) and self._step(_MOVE_ROWS, topic, token, patience)
        except BaseException:
            with suppress(TaskQueueError, psycopg.Error):  # tried again once pushes are let in
                self._step(_UNDO, topic, token, patience)
            raise
        finally:
            with suppress(psycopg.OperationalError):
                self._value("SELECT taskq.unlock_pushes(%s::int)", (number,))

    def _step(self, step: LiteralString, topic: str, token: int, patience: timedelta) -> bool:
        """One transaction of a move."""
        return bool(self._value(step, (topic, token, interval_text(patience))))

    def _undo(self, topic: str, token: int, patience: timedelta, error: BaseException) -> None:
        """Puts back what was changed for a move that failed; where that fails as well, the error says so."""
        try:
            self._step(_UNDO, topic, token, patience)
        except (TaskQueueError, psycopg.Error) as another:
            error.add_note(
                f"nor could this be undone ({another}): topic {topic!r} stays paused until own_partition finishes the"
                " move, or shared_partition undoes it"
            )

    def _await_nothing_held(self, topic: str, patience: timedelta) -> None:
        deadline = time.monotonic() + patience.total_seconds()
        while self._value("SELECT taskq.has_held_tasks(%s::text)", (topic,)):
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
