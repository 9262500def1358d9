"""What every answer tells the browser: run nothing from elsewhere, guess no types, keep nothing."""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# An answer of the API is data, and a static file a module, a style or a picture: none of them is a page of its own.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; frame-ancestors 'none'; base-uri 'none'"
)


class SafeHeaders:
    """Adds the headers to each answer, errors and files included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers as the application does, with the headers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Airflow hands on the whole path and says in root_path where the application is mounted.
        is_file = scope["path"].removeprefix(scope.get("root_path", "")).startswith("/static/")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = _POLICY
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "same-origin"
                # A file is asked for again each time and then mostly not sent (ETag), so that an upgrade shows at once.
                headers["Cache-Control"] = "no-cache" if is_file else "no-store"
            await send(message)

        await self._app(scope, receive, send_with_headers)
