"""The FastAPI application that Airflow mounts at /taskq: the page's files for everybody, all else for who may view."""

from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware import Middleware
from starlette.staticfiles import StaticFiles

from airflow_provider_taskq.plugins import actions, views
from airflow_provider_taskq.plugins.auth import viewer
from airflow_provider_taskq.plugins.headers import SafeHeaders
from airflow_provider_taskq.plugins.session import Refusal

WWW = Path(__file__).parent / "www"
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]


def make_app() -> FastAPI:
    """The API and the files of the page. It describes itself to nobody: /docs and /openapi.json are not there."""
    app = FastAPI(title="TaskQ", docs_url=None, redoc_url=None, openapi_url=None, middleware=[Middleware(SafeHeaders)])
    app.mount("/static", StaticFiles(directory=WWW), name="static")
    app.include_router(views.router)
    app.include_router(actions.router)
    # Whatever else is asked for: those who may not view are refused before they learn that there is nothing.
    app.add_api_route("/{path:path}", _nothing, methods=METHODS, dependencies=[Depends(viewer)])
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(ValidationError, _invalid)
    return app


def _nothing(path: str) -> None:
    raise HTTPException(404, f"There is no /{path} here.")


def _error(status: int, sentence: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"error": sentence}, status, headers)


def _refused(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001  Starlette's signature
    assert isinstance(error, Refusal)  # noqa: S101  for the type checker
    return _error(error.status, error.sentence)


def _http_error(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001  Starlette's signature
    assert isinstance(error, StarletteHTTPException)  # noqa: S101  for the type checker
    sentence = "Log in to Airflow first." if error.status_code == 401 else str(error.detail)
    return _error(error.status_code, sentence, error.headers)


def _invalid(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001  Starlette's signature
    """The first thing that is wrong with a request, without the value: it may be a payload."""
    assert isinstance(error, RequestValidationError | ValidationError)  # noqa: S101  for the type checker
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part != "query")
    return _error(400, f"{place or 'The request'}: {first['msg']}.")
