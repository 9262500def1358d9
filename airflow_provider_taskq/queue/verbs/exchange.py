"""Exchange (sql/functions/exchange.sql)."""

from collections.abc import Mapping

from airflow_provider_taskq.queue.bounds import int_size
from airflow_provider_taskq.queue.encoding import task_of
from airflow_provider_taskq.queue.models import Condition, Decision, Order, Owner, Result, Task
from airflow_provider_taskq.queue.verbs.call import Caller
from airflow_provider_taskq.queue.verbs.complete import columns


class ExchangeVerbs(Caller):
    """How a loop goes round in one call."""

    def exchange(
        self,
        owner: Owner,
        decisions: Mapping[Task | int, Decision | Result | str],
        topic: str,
        size: int = 1,
        order: Order | str = Order.FIRST_IN_FIRST_OUT,
        condition: Condition | str = Condition.NONE,
    ) -> list[Task]:
        """Completes what was done and polls what is next, both or neither: one transaction and one round trip.

        Raises what `complete` and `poll` raise. Where the lease has lapsed, poll refuses: nothing is completed then,
        and `complete` alone still works.
        """
        rows = self._rows(
            "SELECT * FROM taskq.exchange(%s::text, %s::bigint, %b::bigint[], %b::smallint[], %b::text[], %b::text[],"
            " %b::text[]::interval[], %b::text[], %s::text, %s::int, %s::text, %s::text)",
            (owner.name, owner.fence, *columns(decisions), topic, int_size(size), Order(order), Condition(condition)),
        )
        return [task_of(topic, row) for row in rows]
