"""The plugin that Airflow loads: TaskQ's page in the navigation, its panel on task instances, and their API."""

from collections.abc import Callable
from typing import Any

from airflow.plugins_manager import AirflowPlugin

BUNDLE = "taskq/static/taskq.js"  # relative to the <base> of Airflow's interface, so that it is right behind any prefix
_ICONS = {"icon": "taskq/static/icon.svg", "icon_dark_mode": "taskq/static/icon-dark.svg"}


class _OnceAsked:
    """A list that is made when it is asked for, once, on the class and on its instances alike.

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
    """TaskQ's page, its panel, and its API under /taskq."""

    name = "taskq"
    fastapi_apps = _OnceAsked(_apps)
    react_apps = [  # noqa: RUF012  Airflow's own declaration, a list
        {
            "name": "TaskQ",
            "bundle_url": BUNDLE,
            "destination": "nav",
            "category": "browse",
            "url_route": "taskq",
            **_ICONS,
        },
        # The module sets globalThis["TaskQ tasks"] as well: a second import of the same address runs nothing.
        {
            "name": "TaskQ tasks",
            "bundle_url": BUNDLE,
            "destination": "task_instance",
            "url_route": "taskq-tasks",
            **_ICONS,
        },
    ]
