"""Assets with the scheme `taskq`: a topic, named by its Airflow connection or by its server.

- `taskq://conn_id/topic`: `topic_asset` returns it for outlets and schedules, and lineage reports it.
- `taskq://host:port/database/topic`: lineage reports it for a hook that overrides the database.

The topic is percent-encoded, because it may contain any character. Airflow compares the URIs as text.
"""

from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from airflow.sdk import Asset

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset

SCHEME = "taskq"
DEFAULT_PORT = 5432


def topic_asset(topic: str, taskq_conn_id: str = "taskq_default", extra: dict[str, Any] | None = None) -> Asset:
    """Return the asset of a topic behind an Airflow connection, for `outlets=` and `schedule=`."""
    return Asset(uri=f"{SCHEME}://{_escaped(taskq_conn_id)}/{_escaped(topic)}", extra=extra)


def create_asset(
    *, host: str, database: str, topic: str, port: int = DEFAULT_PORT, extra: dict[str, Any] | None = None
) -> Asset:
    """Return the asset of a topic on a server, for lineage."""
    netloc = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return Asset(uri=f"{SCHEME}://{netloc}/{_escaped(database)}/{_escaped(topic)}", extra=extra)


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Normalize a URI: add the default port to a server, remove the user, and escape each part. Raises ValueError."""
    netloc = uri.netloc.rpartition("@")[2].rstrip(":")
    parts = uri.path.split("/")[1:]
    if not netloc or len(parts) not in (1, 2) or not all(parts):
        raise ValueError("invalid asset URI: expected taskq://host:port/database/topic or taskq://conn_id/topic")
    if len(parts) == 1 and uri.port is not None:
        raise ValueError(f"invalid asset URI: {netloc} is a server, so expected taskq://{netloc}/database/topic")
    if len(parts) == 2 and uri.port is None:
        netloc = f"{netloc}:{DEFAULT_PORT}"
    path = "/".join(["", *(_escaped(unquote(part)) for part in parts)])
    return uri._replace(scheme=SCHEME, netloc=netloc, path=path, query="", fragment="")


def convert_asset_to_openlineage(asset: Asset, lineage_context: Any) -> "Dataset":  # noqa: ARG001  OpenLineage's signature
    """Convert an asset to an OpenLineage dataset: its namespace is the server or connection, its name the rest."""
    from airflow.providers.common.compat.openlineage.facet import Dataset

    uri = urlsplit(asset.uri)
    return Dataset(namespace=f"{SCHEME}://{uri.netloc}", name="/".join(map(unquote, uri.path.split("/")[1:])))


def _escaped(part: str) -> str:
    return quote(part, safe="")
