"""Sorted and filtered topics, the search for tasks in all topics, tabs and titles."""

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.plugin.browser import OpenTab

pytestmark = [
    pytest.mark.slow,
    pytest.mark.promise("Each view shows what it names, and leads to the reason of a stuck task"),
]


def shown(main: Locator) -> list[str]:
    """The names of the listed topics."""
    return main.get_by_test_id("topics").locator("tbody tr td:first-child a").all_inner_texts()


def test_topics_are_sorted_by_a_click_on_a_column(tab: OpenTab) -> None:
    visit = tab()
    main = visit.view()
    topics = main.get_by_test_id("topics")
    topics.get_by_role("button", name="Failed").click()
    expect(topics.get_by_role("columnheader", name="Failed")).to_have_attribute("aria-sort", "descending")
    expect(topics.locator("tbody tr").first).to_contain_text("payments")
    topics.get_by_role("button", name="Failed").click()
    expect(visit.page).to_have_url(re.compile("sort=failed&order=asc"))
    expect(topics.locator("tbody tr").last).to_contain_text("payments")
    expect(topics.locator("tfoot")).to_contain_text(re.compile(r"\d+ topics"))


def test_only_trouble_lists_topics_in_trouble_with_totals(tab: OpenTab) -> None:
    visit = tab()
    main = visit.view()
    expect(main.get_by_role("link", name="empty", exact=True)).to_be_visible()
    main.get_by_text("Only topics in trouble").click()
    expect(main.get_by_role("link", name="empty", exact=True)).to_have_count(0)  # others may have been due for too long
    expect(main.get_by_role("link", name="reports", exact=True)).to_be_visible()
    names = shown(main)
    assert {"payments", "reports"} < set(names)
    expect(main.get_by_test_id("topics").locator("tfoot")).to_contain_text(f"{len(names)} topics")
    expect(visit.page).to_have_url(re.compile("trouble=true"))


def test_a_user_finds_a_task_from_any_view(tab: OpenTab) -> None:
    visit = tab()
    main = visit.view("locks")
    field = main.get_by_role("searchbox", name="Find a task in all topics")
    field.fill("payment-0")
    field.press("Enter")
    expect(main.get_by_test_id("found")).to_contain_text("payments")
    expect(visit.page).to_have_title(re.compile("payment-0"))
    main.get_by_test_id("found").get_by_role("link", name=re.compile("^#")).click()
    expect(main.get_by_test_id("why")).to_be_visible()
    field = main.get_by_role("searchbox", name="Find a task in all topics")
    field.fill("no such task")
    field.press("Enter")
    expect(main.get_by_test_id("empty")).to_contain_text("No task matches")


def test_the_title_of_the_tab_names_the_view(tab: OpenTab) -> None:
    visit = tab()
    for query, title in (
        ({}, "Topics · TaskQ"),
        ({"topic": "orders"}, "orders · TaskQ"),
        ({"view": "tasks", "topic": "payments"}, "Tasks · payments · TaskQ"),
        ({"topic": "orders", "sequence": "1"}, "#1 · orders · TaskQ"),
        ({"view": "health"}, "Health · TaskQ"),
    ):
        visit.view(**query)
        expect(visit.page).to_have_title(title)
    visit.page.get_by_role("link", name="Home").first.click()
    expect(visit.page).not_to_have_title(re.compile("TaskQ"))


def test_tabs_that_do_not_fit_can_be_reached_by_buttons(tab: OpenTab) -> None:
    visit = tab(width=360)
    main = visit.view()
    further = main.get_by_role("button", name="Tabs further right")
    expect(main.get_by_role("button", name="Tabs further left")).to_have_count(0)
    expect(further).to_be_visible()
    for _ in range(5):
        if further.count():
            further.click()
            visit.page.wait_for_timeout(50)
    expect(further).to_have_count(0)
    expect(main.get_by_role("link", name="Audit")).to_be_in_viewport()
    expect(main.get_by_role("button", name="Tabs further left")).to_be_visible()
    wide = tab(width=1600)
    expect(wide.view().get_by_test_id("topics")).to_be_visible()
    expect(wide.page.get_by_role("button", name=re.compile("Tabs further"))).to_have_count(0)


def test_a_health_subject_is_listed_once_with_links(tab: OpenTab) -> None:
    visit = tab()
    main = visit.view("health")
    expect(main.get_by_test_id("health")).to_be_visible()
    subjects = main.get_by_test_id("health").locator("tbody tr td:first-child").all_inner_texts()
    assert len(subjects) == len(set(subjects)) > 5
    expect(main.get_by_test_id("health").get_by_test_id("remedy").first).to_contain_text("taskq")
    main.get_by_test_id("health").get_by_role("link", name="worker-that-sleeps").click()
    expect(main.get_by_role("heading", name="worker-that-sleeps")).to_be_visible()
    visit.view("health")
    main.get_by_test_id("health").get_by_role("link", name="waiting", exact=True).first.click()
    expect(main.get_by_role("heading", name="waiting", exact=True)).to_be_visible()
