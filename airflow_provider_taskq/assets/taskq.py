"""Assets `taskq://`: a topic, named by its server or by the Airflow connection that reaches it.

`taskq://conn_id/topic` is what the author of a DAG knows: `topic_asset` makes it for outlets and schedules, and lineage
reports the same. `taskq://host:port/database/topic` names the topic on its server; a hook with a `database` of its own
reports that. The topic is percent-encoded, as it may have any character. Airflow compares assets as texts.
"""

from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from airflow.sdk import Asset

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset

SCHEME = "taskq"
DEFAULT_PORT = 5432


def topic_asset(topic: str, taskq_conn_id: str = "taskq_default", extra: dict[str, Any] | None = None) -> Asset:
    """The asset of a topic behind an Airflow connection, for `outlets=` and `schedule=`."""
    return Asset(uri=f"{SCHEME}://{_escaped(taskq_conn_id)}/{_escaped(topic)}", extra=extra)


def create_asset(
    *, host: str, database: str, topic: str, port: int = DEFAULT_PORT, extra: dict[str, Any] | None = None
) -> Asset:
    """The asset of a topic on a server."""
    netloc = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return Asset(uri=f"{SCHEME}://{netloc}/{_escaped(database)}/{_escaped(topic)}", extra=extra)


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """The one way to write an asset: with a port where it names a server, without user, each part escaped."""
    netloc = uri.netloc.rpartition("@")[2].rstrip(":")
    parts = uri.path.split("/")[1:]
    if not netloc or len(parts) not in (1, 2) or not all(parts):
        raise ValueError("an asset's URI is taskq://host:port/database/topic or taskq://conn_id/topic")
    if len(parts) == 1 and uri.port is not None:
        raise ValueError(f"taskq://{netloc} is a server, so its asset is taskq://{netloc}/database/topic")
    if len(parts) == 2 and uri.port is None:
        netloc = f"{netloc}:{DEFAULT_PORT}"
    path = "/".join(["", *(_escaped(unquote(part)) for part in parts)])
    return uri._replace(scheme=SCHEME, netloc=netloc, path=path, query="", fragment="")


def convert_asset_to_openlineage(asset: Asset, lineage_context: Any) -> "Dataset":  # noqa: ARG001  OpenLineage's signature
    """The same as a data set of OpenLineage: the server or connection is the namespace, the rest the name."""
    from airflow.providers.common.compat.openlineage.facet import Dataset

    uri = urlsplit(asset.uri)
    return Dataset(namespace=f"{SCHEME}://{uri.netloc}", name="/".join(map(unquote, uri.path.split("/")[1:])))


def _escaped(part: str) -> str:
    """One part of the address, whatever is in it."""
    return quote(part, safe="")
