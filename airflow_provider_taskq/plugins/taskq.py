"""The plugin that Airflow loads: the page in the navigation, the panel on task instances, and their API."""

from collections.abc import Callable
from typing import Any

from airflow.plugins_manager import AirflowPlugin

BUNDLE = "taskq/static/taskq.js"  # relative to the <base> of Airflow's interface, for any URL prefix
_ICONS = {"icon": "taskq/static/icon.svg", "icon_dark_mode": "taskq/static/icon-dark.svg"}


class _LazyList:
    """A class attribute that is created at its first access.

    Workers, schedulers and triggerers import plugins too, and need no FastAPI.
    """

    def __init__(self, make: Callable[[], list[Any]]) -> None:
        self._make = make
        self._made: list[Any] | None = None

    def __get__(self, instance: object, owner: type | None = None) -> list[Any]:
        if self._made is None:
            self._made = self._make()
        return self._made


def _apps() -> list[Any]:
    from airflow_provider_taskq.plugins.app import make_app

    return [{"name": "TaskQ", "app": make_app(), "url_prefix": "/taskq"}]


class TaskQPlugin(AirflowPlugin):
    """The page, the panel and the API under /taskq."""

    name = "taskq"
    fastapi_apps = _LazyList(_apps)
    react_apps = [  # noqa: RUF012  Airflow declares it as a list
        {
            "name": "TaskQ",
            "bundle_url": BUNDLE,
            "destination": "nav",
            "category": "browse",
            "url_route": "taskq",
            **_ICONS,
        },
        # The bundle also sets globalThis["TaskQ tasks"]: a second import of the same URL does not run it again.
        {
            "name": "TaskQ tasks",
            "bundle_url": BUNDLE,
            "destination": "task_instance",
            "url_route": "taskq-tasks",
            **_ICONS,
        },
    ]
