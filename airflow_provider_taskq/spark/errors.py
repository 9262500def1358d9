"""From what Spark reports to one clear sentence: the errors that stand behind Python's and Java's traces."""

import re

from airflow_provider_taskq import queue
from airflow_provider_taskq.queue import TaskQueueError

# The last line of a Python trace, as Spark quotes it from a worker.
_OWN = re.compile(r"airflow_provider_taskq\.queue\.errors\.(\w+): (.+)")
_ANY = re.compile(r"^(?!Caused by|\s)(?:[\w]+\.)*(\w*(?:Error|Exception|Exit|Interrupt)): (.+)$", re.MULTILINE)


def own_error(error: BaseException) -> TaskQueueError | None:
    """The queue's error that made a Spark job fail, or None where something else did."""
    if isinstance(error, TaskQueueError):
        return error
    if found := _OWN.search(str(error)):
        kind = getattr(queue, found[1], TaskQueueError)
        return kind(found[2].strip()) if issubclass(kind, TaskQueueError) else None
    return None


def sentence(error: BaseException) -> str:
    """What went wrong, in one line."""
    if own := own_error(error):
        return str(own)
    text = str(error).strip()
    if "JAVA_GATEWAY_EXITED" in text or "JAVA_HOME" in text:
        return "Spark did not start: it needs Java 17 or later on the PATH or in JAVA_HOME"
    quoted = [found for found in _ANY.finditer(text) if not found[1].endswith("SparkException")]
    if quoted:
        return f"{quoted[0][1]}: {quoted[0][2]}"
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
