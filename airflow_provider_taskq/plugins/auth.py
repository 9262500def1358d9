"""Authorization: the rights to view the page and to act on a queue, and the check of a request's origin.

To view, a user needs the right to view Airflow's jobs, as for the pages of Airflow's own providers. Every auth manager
knows that view; the FAB auth manager refuses a view that is not among its resources. To act and to see payloads, a user
needs the right to edit the Airflow connection.
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
    """Return the connections that the page shows: `[taskq] conn_ids`."""
    given = conf.get("taskq", "conn_ids", fallback=DEFAULT_CONN_ID)
    return list(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))


def viewer(user: Annotated[BaseUser, Depends(get_user)]) -> BaseUser:
    """Return the user. Refuse a user without the right to view the page."""
    if not get_auth_manager().is_authorized_view(access_view=AccessView.JOBS, user=user):
        raise HTTPException(403, "You may not view TaskQ: you need the right to read Airflow's jobs.")
    return user


Viewer = Annotated[BaseUser, Depends(viewer)]


def listed(conn_id: str) -> str:
    """Return the connection if the page shows it.

    The answer for any other connection does not tell whether it exists.
    """
    if conn_id not in listed_conn_ids():
        raise HTTPException(404, "[taskq] conn_ids does not list this connection.")
    return conn_id


ConnId = Annotated[str, Depends(listed)]


def may_act(user: BaseUser, conn_id: str) -> bool:
    """Return whether a user may edit a connection, and so act on its queue and see its payloads."""
    details = ConnectionDetails(conn_id=conn_id)
    if conf.getboolean("core", "multi_team", fallback=False):
        from airflow.models import Connection

        details.team_name = Connection.get_team_name(conn_id)  # noqa: AIR311  the SDK's own has no teams
    return bool(get_auth_manager().is_authorized_connection(method="PUT", details=details, user=user))


def actor(user: Viewer, conn_id: ConnId) -> BaseUser:
    """Return the user. Refuse a user without the right to act on the connection's queue."""
    if not may_act(user, conn_id):
        raise HTTPException(403, f"You may view {conn_id}, but not act on it: you need the right to edit it.")
    return user


Actor = Annotated[BaseUser, Depends(actor)]


def same_origin(request: Request) -> None:
    """Refuse a request that a page of another site sends with the user's cookie.

    A browser sends Sec-Fetch-Site or Origin, and a preflight request before it sends JSON to another site. A program
    that sends neither header authenticates with a token of its own.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(400, "Send JSON, with Content-Type: application/json.")
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if (site is not None and site != "same-origin") or (origin is not None and origin not in _own_origins(request)):
        raise HTTPException(403, "The request came from a page of another site and was refused.")


def _own_origins(request: Request) -> set[str]:
    """Return the origins of this Airflow: the origin that the browser used, and that of `[api] base_url`."""
    base = urlsplit(conf.get("api", "base_url", fallback=""))
    host = request.headers.get("host", "")
    own = {f"{request.url.scheme}://{host}", f"{base.scheme}://{base.netloc}"}
    if request.headers.get("sec-fetch-site") == "same-origin":  # a header that no script can set
        own.add(f"https://{host}")  # TLS has ended at a proxy
    return own
