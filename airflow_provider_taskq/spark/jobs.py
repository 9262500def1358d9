"""The Spark jobs of a drain: their description, their tag, and how another thread cancels them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, cast

from pyspark.sql import SparkSession, functions

if TYPE_CHECKING:
    from pyspark import SparkContext  # pyspark-client, which is enough for Spark Connect, has none


class SparkJobs(ABC):
    """The jobs that a thread starts inside of `described`, in a session of either kind.

    :param tag: the tag of these jobs, which no other drain has.
    """

    def __init__(self, tag: str) -> None:
        self._tag = tag

    @classmethod
    def of(cls, spark: SparkSession, tag: str = "taskq-drain") -> "SparkJobs":
        """Return the jobs of a session: through its SparkContext, or through Spark Connect if it has none."""
        context: SparkContext | None = getattr(spark, "sparkContext", None)
        return _ConnectJobs(spark, tag) if context is None else _ClassicJobs(spark, context, tag)

    @abstractmethod
    def cores(self) -> int:
        """Return the number of cores that Spark has for its tasks now, or with Spark Connect had at the first call."""

    @abstractmethod
    def cancel(self) -> None:
        """Cancel the running jobs, from any thread. A job that starts later is not cancelled."""

    @abstractmethod
    def cancel_all(self) -> None:
        """Cancel all running jobs of the session, from any thread."""

    @abstractmethod
    def set_log_level(self, level: str) -> None:
        """Set the log level of Spark if Spark's driver is this process. A server keeps its own."""

    @contextmanager
    def described(self, description: str) -> Iterator[None]:
        """Give this thread's jobs a description, and the tag by which `cancel` finds them."""
        reset = self._describe(description)
        try:
            yield
        except Exception:
            with suppress(Exception):  # the JVM may be gone, and must not replace the error of the drain
                reset()
            raise
        # Not after a KeyboardInterrupt: this thread's call to the JVM is then still under way.
        reset()

    @abstractmethod
    def _describe(self, description: str) -> Callable[[], None]:
        """Describe and tag the jobs of this thread, in this session, and return the function that undoes it."""


class _ClassicJobs(SparkJobs):
    """The jobs of a session whose driver is this process."""

    def __init__(self, spark: SparkSession, context: "SparkContext", tag: str) -> None:
        super().__init__(tag)
        self._spark = spark
        self._context = context

    def cores(self) -> int:
        return self._context.defaultParallelism

    def cancel(self) -> None:
        # SparkSession.interruptTag would look the tag up among those of the calling thread, and cancel nothing.
        self._context.cancelJobsWithTag(self._tag)

    def cancel_all(self) -> None:
        self._context.cancelAllJobs()

    def set_log_level(self, level: str) -> None:
        self._context.setLogLevel(level)

    def _describe(self, description: str) -> Callable[[], None]:
        context = self._context
        before = context.getLocalProperty("spark.job.description")
        context.setJobDescription(description)
        context.addJobTag(self._tag)
        # Spark looks a data source up in the active session, which each thread of the JVM has for itself.
        sessions = context._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr] # noqa: SLF001
        active = sessions.getActiveSession()
        sessions.setActiveSession(self._spark._jsparkSession)  # noqa: SLF001 -- PySpark has no public method

        def reset() -> None:
            if active.isDefined():
                sessions.setActiveSession(active.get())
            else:
                sessions.clearActiveSession()
            context.removeJobTag(self._tag)
            context.setLocalProperty("spark.job.description", cast("str", before))  # None removes it

        return reset


class _ConnectJobs(SparkJobs):
    """The jobs that a session of Spark Connect starts on its server.

    The server itself describes them. Its page shows the tag.
    """

    def __init__(self, spark: SparkSession, tag: str) -> None:
        super().__init__(tag)
        self._spark = spark
        self._cores = 0

    def cores(self) -> int:
        if not self._cores:
            # No client can ask for the number of cores. But the server splits a range into that number of partitions,
            # and the last partition has the only row.
            ((last,),) = self._spark.range(1).select(functions.spark_partition_id()).collect()
            self._cores = int(last) + 1
        return self._cores

    def cancel(self) -> None:
        self._spark.interruptTag(self._tag)

    def cancel_all(self) -> None:
        self._spark.interruptAll()

    def set_log_level(self, level: str) -> None:
        """Do nothing: the log level belongs to the server."""

    def _describe(self, description: str) -> Callable[[], None]:  # noqa: ARG002
        self._spark.addTag(self._tag)
        return lambda: self._spark.removeTag(self._tag)
