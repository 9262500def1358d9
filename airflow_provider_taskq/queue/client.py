"""The queue: all its verbs over one connection."""

from airflow_provider_taskq.queue.admin import TendingVerbs
from airflow_provider_taskq.queue.inspect import BrowseVerbs
from airflow_provider_taskq.queue.partitions import PartitionVerbs
from airflow_provider_taskq.queue.verbs.audit import AuditVerbs
from airflow_provider_taskq.queue.verbs.complete import CompleteVerbs
from airflow_provider_taskq.queue.verbs.drain import DrainVerbs
from airflow_provider_taskq.queue.verbs.exchange import ExchangeVerbs
from airflow_provider_taskq.queue.verbs.health import HealthVerbs
from airflow_provider_taskq.queue.verbs.junction import JunctionVerbs
from airflow_provider_taskq.queue.verbs.lock import LockVerbs
from airflow_provider_taskq.queue.verbs.log import LogVerbs
from airflow_provider_taskq.queue.verbs.offer import OfferVerbs
from airflow_provider_taskq.queue.verbs.owner import OwnerVerbs
from airflow_provider_taskq.queue.verbs.poll import PollVerbs
from airflow_provider_taskq.queue.verbs.purge import PurgeVerbs
from airflow_provider_taskq.queue.verbs.push import PushVerbs
from airflow_provider_taskq.queue.verbs.read import ReadVerbs
from airflow_provider_taskq.queue.verbs.reader import ReaderVerbs
from airflow_provider_taskq.queue.verbs.revive import ReviveVerbs
from airflow_provider_taskq.queue.verbs.statistics import StatisticsVerbs
from airflow_provider_taskq.queue.verbs.story import StoryVerbs
from airflow_provider_taskq.queue.verbs.ticks import TickVerbs
from airflow_provider_taskq.queue.verbs.topic import TopicVerbs
from airflow_provider_taskq.queue.verbs.worker import WorkerVerbs


class TaskQueue(
    TopicVerbs,
    OwnerVerbs,
    PushVerbs,
    OfferVerbs,
    PollVerbs,
    CompleteVerbs,
    ExchangeVerbs,
    DrainVerbs,
    ReadVerbs,
    ReviveVerbs,
    JunctionVerbs,
    PurgeVerbs,
    LockVerbs,
    HealthVerbs,
    StoryVerbs,
    BrowseVerbs,
    AuditVerbs,
    PartitionVerbs,
    LogVerbs,
    ReaderVerbs,
    TendingVerbs,
    StatisticsVerbs,
    WorkerVerbs,
    TickVerbs,
):
    """The queue in the database that a `psycopg.Connection` reaches.

    Every verb runs in the caller's transaction and never commits: push inside the transaction that writes your
    business row, complete inside the one that writes your result. A verb that raises changed nothing; as after
    any PostgreSQL error, the transaction then has to be rolled back, or rolled back to a savepoint.
    """
