"""The queue: all its verbs over one connection."""

from airflow_provider_taskq.queue.verbs.complete import CompleteVerbs
from airflow_provider_taskq.queue.verbs.owner import OwnerVerbs
from airflow_provider_taskq.queue.verbs.poll import PollVerbs
from airflow_provider_taskq.queue.verbs.push import PushVerbs
from airflow_provider_taskq.queue.verbs.read import ReadVerbs
from airflow_provider_taskq.queue.verbs.topic import TopicVerbs


class TaskQueue(TopicVerbs, OwnerVerbs, PushVerbs, PollVerbs, CompleteVerbs, ReadVerbs):
    """The queue in the database that a `psycopg.Connection` reaches.

    Every verb runs in the caller's transaction and never commits: push inside the transaction that writes your
    business row, complete inside the one that writes your result. A verb that raises changed nothing; as after
    any PostgreSQL error, the transaction then has to be rolled back, or rolled back to a savepoint.
    """
