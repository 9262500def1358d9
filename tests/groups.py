"""Which tests run in one process of pytest-xdist, and in which order these groups begin.

A group is a file, or the files that share a server which starts once in a session. Each process takes the next group
when it is free, so the groups that take longest begin first. The mark `xdist_group` would do the same, but pytest-xdist
3.8 ignores it under pytest 9.2.
"""

from collections.abc import Sequence
from typing import Any

import pytest

# The start of a file's path, and its group; the slowest group first, and the files of a group in their order.
SHARED = {
    "tests/spark/": "Spark's session",
    "tests/worker/test_composite_spark.py": "Spark's session",
    "tests/worker/test_engines.py": "Spark's session",
    "tests/worker/test_runners.py": "Spark's session",
    "tests/plugin/": "Airflow",  # first: the page needs the api-server only, and the other processes cost CPU
    "tests/airflow/test_end_to_end.py": "Airflow",
    "tests/airflow/test_gates_end_to_end.py": "Airflow",
    "tests/airflow/test_event_dags.py": "Airflow",
}


def group(nodeid: str) -> str:
    """Return the group of a test."""
    path = nodeid.partition("::")[0]
    return SHARED.get(_start(nodeid), path)


def _start(nodeid: str) -> str:
    return next((start for start in SHARED if nodeid.startswith(start)), "")


def in_order_of_groups(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests in the order in which their groups begin."""
    places = {name: place for place, name in enumerate(dict.fromkeys(SHARED.values()))}
    within = {start: place for place, start in enumerate(SHARED)}
    slow = {group(item.nodeid) for item in items if item.get_closest_marker("slow")}

    def place(item: pytest.Item) -> tuple[int, bool, str, int]:
        name = group(item.nodeid)
        return places.get(name, len(places)), name not in slow, name, within.get(_start(item.nodeid), 0)

    return sorted(items, key=place)


def make_scheduler(config: pytest.Config, log: Any) -> object:
    """Make a scheduler of pytest-xdist that hands out groups."""
    from xdist.scheduler import LoadScopeScheduling  # not at the top: a single process needs no pytest-xdist

    class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist ships no types
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    config.option.loadscopereorder = False  # not in pyproject.toml: the older releases run without pytest-xdist
    return GroupScheduling(config, log)
