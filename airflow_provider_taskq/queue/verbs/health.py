"""What slows or threatens the queue (sql/functions/health.sql, health_work.sql)."""

from datetime import timedelta

from airflow_provider_taskq.queue.encoding import interval_text
from airflow_provider_taskq.queue.finding import Finding, Severity
from airflow_provider_taskq.queue.verbs.call import Caller

PATIENCE = timedelta(minutes=5)


class HealthVerbs(Caller):
    """How the queue is doing."""

    def health(self, patience: timedelta = PATIENCE) -> list[Finding]:
        """Names what slows or threatens the queue, the worst first; each subject has a finding, also while it is fine.

        `patience`: how long a due task, or a lapsed lease, may wait without being named. Takes nothing, locks
        nothing, and costs milliseconds however many tasks there are.
        """
        rows = self._rows("SELECT * FROM taskq.health(%s::text::interval)", (interval_text(patience),))
        return [Finding(Severity[severity.upper()], *rest) for severity, *rest in rows]
