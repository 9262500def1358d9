"""Workers by name: whether they are to work (sql/functions/worker.sql)."""

from airflow_provider_taskq.queue.verbs.call import Caller


class WorkerVerbs(Caller):
    """A state of each worker that outlives its processes."""

    def activate_worker(self, name: str) -> bool | None:
        """Says that workers of that name are to work, and tells them at the commit.

        Returns whether they were to before; None where nobody had said.
        """
        return self._set_worker(name, active=True)

    def deactivate_worker(self, name: str) -> bool | None:
        """Says that workers of that name are to stop; returns as `activate_worker` does."""
        return self._set_worker(name, active=False)

    def worker_is_active(self, name: str) -> bool | None:
        """Whether workers of that name are to work; None where nobody has said."""
        said: bool | None = self._value("SELECT taskq.worker_is_active(%s::text)", (name,))
        return said

    def workers(self) -> dict[str, bool]:
        """Whether they are to work, by name: all workers of whom that was said."""
        return {row[0]: row[1] for row in self._rows("SELECT name, active FROM taskq.workers()")}

    def forget_worker(self, name: str) -> bool:
        """Forgets what was said of workers of that name; False where nothing was."""
        return bool(self._value("SELECT taskq.forget_worker(%s::text)", (name,)))

    def _set_worker(self, name: str, *, active: bool) -> bool | None:
        said: bool | None = self._value("SELECT taskq.set_worker(%s::text, %s::boolean)", (name, active))
        return said
