"""Which tests run in one process of pytest-xdist, and in which order these groups begin.

A group is a file, or all files that share a server which starts once in a session. Each process takes the next group
when it is free, so the groups that take longest begin first.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

# Fixtures that start a server for a session: the slowest group first.
SHARED = ("spark", "site", "page_site")


def order_by_group(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Mark each test with its group. Return the tests in the order in which their groups begin."""
    shared: dict[Path, int] = {}
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        for place, name in enumerate(SHARED):
            if name in fixtures:
                shared[item.path] = min(place, shared.get(item.path, place))
    for item in items:
        name = SHARED[shared[item.path]] if item.path in shared else os.fspath(item.path)
        item.add_marker(pytest.mark.xdist_group(name))
    return sorted(items, key=lambda item: (shared.get(item.path, len(SHARED)), item.path not in slow))
