"""Tables of their own for busy topics: moving a topic's tasks out of the shared tables and back."""

import time
from contextlib import suppress
from datetime import timedelta
from typing import LiteralString

import psycopg

from airflow_provider_taskq.queue.arguments import DurationLike, to_timedelta
from airflow_provider_taskq.queue.connection import FunctionCaller
from airflow_provider_taskq.queue.errors import TaskQueueError

_ONE_MINUTE = timedelta(minutes=1)
_MAX_MOVED_BACK = 1_000

_MAKE_TABLES = "SELECT taskq.create_own_tables(%s::text, %s::bigint, %s::interval)"
_CLOSE_SHARED = "SELECT taskq.close_shared_tables(%s::text, %s::bigint, %s::interval)"
_MOVE_ROWS = "SELECT taskq.move_to_own_tables(%s::text, %s::bigint, %s::interval)"
_UNDO = "SELECT taskq.undo_partition_move(%s::text, %s::bigint, %s::interval)"


class PartitionMixin(FunctionCaller):
    """Verbs that move a topic's tasks between the shared tables and tables of its own."""

    def own_partition(self, topic: str, patience: DurationLike = _ONE_MINUTE) -> bool:
        """Give a topic tables of its own, and move all its tasks there. Return False if the topic has them already.

        The call pauses the topic, waits until none of its tasks is held, moves the tasks, and resumes the topic if it
        was not paused before. Meanwhile the topic hands out nothing, pushes to it wait, and reviving or purging its
        tasks fails. Other topics wait for milliseconds. If an earlier call was killed, this call finishes its move.

        The move takes several transactions under a lock of the session, so it needs a connection in autocommit without
        a transaction pooler.

        :param patience: how long each wait may take.
        :raises TaskQueueError: if another session moves the topic, or a wait takes longer; the move is undone.
        """
        patience = to_timedelta(patience, "patience")
        self._require_own_session()
        token = self._value("SELECT taskq.begin_partition_move(%s::text, %s::interval)", (topic, patience))
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

    def shared_partition(self, topic: str, most: int = _MAX_MOVED_BACK, patience: DurationLike = _ONE_MINUTE) -> bool:
        """Move a topic's tasks back to the shared tables. Return False if they are in the shared tables already.

        The connection must be in autocommit. If an `own_partition` of the topic was killed, this call undoes its move,
        and returns True.

        :param most: the most tasks of the topic; all topics wait while they move.
        :param patience: how long each wait may take.
        :raises TaskQueueError: if the topic has more tasks, another session moves it, or a wait takes longer. Nothing
            is changed then.
        """
        self._require_autocommit()
        return self._flag(
            "SELECT taskq.move_to_shared_tables(%s::text, %s::bigint, %s::interval)",
            (topic, most, patience),
        )

    def drop_vacant_partitions(self, patience: DurationLike = _ONE_MINUTE) -> int:
        """Drop the tables of dropped topics. Return the number of these topics.

        The connection must be in autocommit.

        :param patience: how long each wait may take.
        """
        self._require_autocommit()
        return self._number("SELECT taskq.drop_vacant_tables(%s::interval)", (patience,))

    def _move(self, topic: str, token: int, patience: timedelta) -> None:
        """Move a paused topic as soon as none of its tasks is held and no push to it is open."""
        deadline = time.monotonic() + patience.total_seconds()
        self._await_nothing_held(topic, patience)
        self._step(_MAKE_TABLES, topic, token, patience)
        while not self._try_to_move(topic, token, patience):
            if time.monotonic() > deadline:
                raise TaskQueueError(
                    f"topic {topic!r} cannot move: workers poll its tasks again and again, or transactions that change"
                    " it or use other topics push to it. Repeat this when they have ended"
                )
            self._await_nothing_held(topic, patience)

    def _try_to_move(self, topic: str, token: int, patience: timedelta) -> bool:
        """Move a topic while pushes to it wait.

        Return False if a task is held. Pushes then continue until the next try.
        """
        number = self._value("SELECT taskq.lock_pushes(%s::text, %s::interval)", (topic, patience))
        try:
            # A poll that started before the pause may have claimed a task since the wait.
            return self._step(_CLOSE_SHARED, topic, token, patience) and self._step(_MOVE_ROWS, topic, token, patience)
        except BaseException:
            with suppress(TaskQueueError, psycopg.Error):  # repeated by own_partition, after pushes are unlocked
                self._step(_UNDO, topic, token, patience)
            raise
        finally:
            with suppress(psycopg.OperationalError):
                self._value("SELECT taskq.unlock_pushes(%s::int)", (number,))

    def _step(self, step: LiteralString, topic: str, token: int, patience: timedelta) -> bool:
        return self._flag(step, (topic, token, patience))

    def _undo(self, topic: str, token: int, patience: timedelta, error: BaseException) -> None:
        try:
            self._step(_UNDO, topic, token, patience)
        except (TaskQueueError, psycopg.Error) as another:
            error.add_note(
                f"the move could not be undone ({another}): topic {topic!r} stays paused until own_partition finishes"
                " the move, or shared_partition undoes it"
            )

    def _await_nothing_held(self, topic: str, patience: timedelta) -> None:
        deadline = time.monotonic() + patience.total_seconds()
        while self._value("SELECT taskq.has_held_tasks(%s::text)", (topic,)):
            if time.monotonic() > deadline:
                raise TaskQueueError(
                    f"tasks of topic {topic!r} are still held after {patience}: complete or release them"
                )
            time.sleep(0.05)  # the database sends no notification when a task ends

    def _require_autocommit(self) -> None:
        # All topics would wait until the caller's transaction ends.
        if not self._commits_each_call:
            raise TaskQueueError("moving a topic cannot run inside a transaction: use a connection in autocommit")

    def _require_own_session(self) -> None:
        # A pooler may give each transaction another session.
        self._require_autocommit()
        if self._value("SELECT pg_backend_pid()") != self.conn.info.backend_pid:
            raise TaskQueueError("own_partition() needs a session of its own: connect without a transaction pooler")
