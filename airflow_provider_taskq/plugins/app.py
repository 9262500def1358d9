"""The FastAPI application that Airflow mounts at /taskq.

Every browser may load the page's files; everything else needs the right to view.
"""

from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware import Middleware
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from airflow_provider_taskq.plugins import actions, task_instances, views
from airflow_provider_taskq.plugins.auth import viewer
from airflow_provider_taskq.plugins.schemas import ErrorDocument

# An answer is data, a script, a style or an image, and never a page of its own.
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; frame-ancestors 'none'; base-uri 'none'"
)


class SecurityHeaders:
    """Middleware that adds security headers to each answer, errors and files included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: D102
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Airflow passes on the whole path, and the mount point in root_path.
        is_file = scope["path"].removeprefix(scope.get("root_path", "")).startswith("/static/")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = _CONTENT_POLICY
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "same-origin"
                # The browser asks for a file each time and gets it if it changed (ETag): upgrades show.
                headers["Cache-Control"] = "no-cache" if is_file else "no-store"
            await send(message)

        await self._app(scope, receive, send_with_headers)


WWW = Path(__file__).parent / "www"
# The description of "4XX" also leaves out FastAPI's answer 422, which `_invalid` replaces by 400.
_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorDocument, "description": "The request is refused, or what it names does not exist"},
    "503": {"model": ErrorDocument, "description": "The database does not answer now"},
}
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]


def make_app() -> FastAPI:
    """Create the API and the files of the page, without /docs and /openapi.json."""
    app = FastAPI(
        title="TaskQ",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        middleware=[Middleware(SecurityHeaders)],
        responses=_ERRORS,
    )
    app.mount("/static", StaticFiles(directory=WWW), name="static")
    app.include_router(views.router)
    app.include_router(task_instances.router)
    app.include_router(actions.router)
    # A user without the right to view gets 403 for any other path, not 404.
    app.add_api_route("/{path:path}", _unknown_path, methods=METHODS, dependencies=[Depends(viewer)])
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(ValidationError, _invalid)
    return app


def _unknown_path(path: str) -> None:
    raise HTTPException(404, f"The path /{path} does not exist.")


def _error(status: int, message: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"error": message}, status, headers)


def _http_error(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001  Starlette's signature
    assert isinstance(error, StarletteHTTPException)  # noqa: S101  for the type checker
    message = "Log in to Airflow first." if error.status_code == 401 else str(error.detail)
    return _error(error.status_code, message, error.headers)


def _invalid(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001  Starlette's signature
    """Answer with the first error of a request, without the value because it may be a payload."""
    assert isinstance(error, RequestValidationError | ValidationError)  # noqa: S101  for the type checker
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part != "query")
    return _error(400, f"{place or 'The request'}: {first['msg']}.")
