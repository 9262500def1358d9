"""The errors behind the traces of Python and Java that Spark reports."""

import re

from airflow_provider_taskq import queue
from airflow_provider_taskq.queue import TaskQueueError

# The last line of a Python trace, as Spark quotes it from a worker.
_QUEUE_ERROR = re.compile(r"airflow_provider_taskq\.queue\.errors\.(\w+): (.+)")
_ANY_ERROR = re.compile(r"^(?!Caused by|\s)(?:[\w]+\.)*(\w*(?:Error|Exception|Exit|Interrupt)): (.+)$", re.MULTILINE)


def queue_error(error: BaseException) -> TaskQueueError | None:
    """The queue's error that made a Spark job fail; None if the job failed for another reason."""
    if isinstance(error, TaskQueueError):
        return error
    if found := _QUEUE_ERROR.search(str(error)):
        kind = getattr(queue, found[1], TaskQueueError)
        return kind(found[2].strip()) if issubclass(kind, TaskQueueError) else None
    return None


def describe_error(error: BaseException) -> str:
    """The cause of an error in one line."""
    if cause := queue_error(error):
        return str(cause)
    text = str(error).strip()
    if "JAVA_GATEWAY_EXITED" in text or "JAVA_HOME" in text:
        return "Spark did not start: it needs Java 17 or later on the PATH or in JAVA_HOME"
    quoted = [found for found in _ANY_ERROR.finditer(text) if not found[1].endswith("SparkException")]
    if quoted:
        return f"{quoted[0][1]}: {quoted[0][2]}"
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
