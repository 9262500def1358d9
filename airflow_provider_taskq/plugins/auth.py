"""Who may do what: everybody who asks has to be somebody, to view takes a right, and to act a stronger one.

Viewing is the right to view Airflow's jobs, as for the pages of Airflow's own providers: every auth manager knows that
view, while the FAB auth manager refuses everybody a view that is not among its resources. Acting, and seeing payloads,
is the right to edit the Airflow connection: the right to a view says nothing about changes.
"""

from typing import Annotated
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, ConnectionDetails
from airflow.api_fastapi.core_api.security import get_user
from airflow.configuration import conf
from fastapi import Depends, HTTPException, Request

DEFAULT_CONN_ID = "taskq_default"


def listed_conn_ids() -> list[str]:
    """The connections that this deployment shows: `[taskq] conn_ids`."""
    given = conf.get("taskq", "conn_ids", fallback=DEFAULT_CONN_ID)
    return list(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))


def viewer(user: Annotated[BaseUser, Depends(get_user)]) -> BaseUser:
    """Whoever asks, if they may view."""
    if not get_auth_manager().is_authorized_view(access_view=AccessView.JOBS, user=user):
        raise HTTPException(403, "You may not view TaskQ: that takes the right to read Airflow's jobs.")
    return user


Viewer = Annotated[BaseUser, Depends(viewer)]


def listed(conn_id: str) -> str:
    """A connection that the deployment shows; of others not even that they exist is told."""
    if conn_id not in listed_conn_ids():
        raise HTTPException(404, "There is no such connection among those of [taskq] conn_ids.")
    return conn_id


def may_act(user: BaseUser, conn_id: str) -> bool:
    """Whether somebody may edit a connection, and so act on its queue and see its payloads."""
    team = {"team_name": _team_of(conn_id)} if conf.getboolean("core", "multi_team", fallback=False) else {}
    details = ConnectionDetails(conn_id=conn_id, **team)
    return bool(get_auth_manager().is_authorized_connection(method="PUT", details=details, user=user))


def _team_of(conn_id: str) -> str | None:
    """The team that a connection belongs to, where Airflow knows teams."""
    from airflow.models import Connection

    return Connection.get_team_name(conn_id)  # noqa: AIR311  the SDK's own has no teams


def actor(user: Viewer, conn_id: Annotated[str, Depends(listed)]) -> BaseUser:
    """Whoever asks, if they may act on the connection's queue."""
    if not may_act(user, conn_id):
        raise HTTPException(403, f"You may look at {conn_id}, but not act on it: that takes the right to edit it.")
    return user


Actor = Annotated[BaseUser, Depends(actor)]


def same_origin(request: Request) -> None:
    """Refuses what another site's page sends with the user's cookie.

    A browser says by Sec-Fetch-Site or Origin where a request comes from, and asks before it sends JSON elsewhere; a
    program that says neither brings a token of its own.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(400, "Send JSON, with Content-Type: application/json.")
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if (site is not None and site != "same-origin") or (origin is not None and origin not in _own_origins(request)):
        raise HTTPException(403, "This came from another site's page, and was not done.")


def _own_origins(request: Request) -> set[str]:
    """Where this Airflow is: as the browser addressed it, and as `[api] base_url` says."""
    base = urlsplit(conf.get("api", "base_url", fallback=""))
    host = request.headers.get("host", "")
    own = {f"{request.url.scheme}://{host}", f"{base.scheme}://{base.netloc}"}
    if request.headers.get("sec-fetch-site") == "same-origin":  # which no page's script can set
        own.add(f"https://{host}")  # TLS has ended at a proxy
    return own
