"""Three clicks that lead to the reason of a stuck task, and every view: the pictures of docs/production/page.md.

TASKQ_PICTURES=docs/pictures keeps the pictures.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from airflow_provider_taskq.queue import TaskQueue
from tests.plugin import shop_queue
from tests.plugin.browser import OpenTab

pytestmark = [
    pytest.mark.slow,
    pytest.mark.promise("Each view shows what it names, and leads to the reason of a stuck task"),
]

MOST_BYTES = 150_000
CONN = "taskq_acts"
Take = Callable[[Page, str], None]


@pytest.fixture
def take(tmp_path: Path) -> Take:
    """Takes a picture of a tab after all its requests have ended."""
    folder = Path(os.environ.get("TASKQ_PICTURES") or tmp_path)

    def taken(page: Page, name: str) -> None:
        expect(page.get_by_test_id("loading")).to_have_count(0)
        page.mouse.move(1, 1)
        path = folder / f"{name}.png"
        page.screenshot(path=path, animations="disabled", scale="css")
        assert 5_000 < path.stat().st_size < MOST_BYTES

    return taken


def test_why_a_task_is_stuck_is_found_in_three_clicks(tab: OpenTab, acts: TaskQueue, take: Take) -> None:
    shop_queue.fill(acts)
    visit = tab(height=700)
    main = visit.view(conn_id=CONN)
    expect(main.get_by_test_id("topics").get_by_role("img")).not_to_have_count(0)
    take(visit.page, "walk-0-topics")
    main.get_by_role("link", name="invoices", exact=True).click()
    expect(main.get_by_test_id("tasks")).to_contain_text(shop_queue.STUCK)
    take(visit.page, "walk-1-topic")
    main.get_by_role("link", name=shop_queue.STUCK).click()
    why = main.get_by_test_id("why")
    expect(why).to_contain_text(shop_queue.BLOCKER)
    take(visit.page, "walk-2-why")
    main.get_by_role("link", name=re.compile(f"{shop_queue.BLOCKER}$")).click()
    expect(main.get_by_test_id("error")).to_contain_text("the bank's gateway did not answer")
    take(visit.page, "walk-3-cause")


@pytest.mark.documents
def test_every_view_renders_dark_and_light_narrow_and_wide(tab: OpenTab, acts: TaskQueue, take: Take) -> None:
    shop_queue.fill(acts)
    wide, narrow = tab(dark=True, height=1000), tab(width=390, height=844)
    main = wide.view(conn_id=CONN, topic="payments")
    expect(main.get_by_test_id("tasks")).to_be_visible()
    take(wide.page, "topic-dark")
    wide.page.set_viewport_size({"width": 1440, "height": 520})
    main = wide.view("tasks", conn_id=CONN, topic="payments", state="FAILED", error="gateway")
    main.get_by_test_id("bulk").get_by_role("button", name="Retry").click()
    expect(wide.page.get_by_test_id("confirm")).to_be_enabled()
    take(wide.page, "retry-dark")
    main = narrow.view(conn_id=CONN)
    expect(main.get_by_test_id("topics").get_by_role("img")).not_to_have_count(0)
    take(narrow.page, "topics-narrow")
    main = narrow.view("tasks", conn_id=CONN, topic="payments", state="FAILED")
    main.get_by_test_id("tasks").get_by_role("link", name=re.compile("^#")).first.click()
    expect(main.get_by_test_id("why")).to_be_visible()
    take(narrow.page, "task-narrow")
    light = tab(height=560)
    expect(light.view("health", conn_id=CONN).get_by_test_id("health")).to_be_visible()
    take(light.page, "health")
    panel = light.go("dags/shop/runs/manual__1/tasks/claim/plugin/taskq-tasks").get_by_test_id("taskq-panel")
    expect(panel.get_by_test_id("holds")).to_be_visible()
    take(light.page, "panel")
    huge = tab(width=3840, height=2160, dark=True)
    main = huge.view("tasks", conn_id=CONN, topic="payments", state="SUSPENDED")
    expect(main.get_by_test_id("tasks")).to_be_visible()
    take(huge.page, "tasks-4k")
