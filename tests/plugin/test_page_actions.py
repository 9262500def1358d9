"""Each action of the page in a real browser: previewed, confirmed, done and audited."""

import json
import re

import pytest
from playwright.sync_api import Locator, Page, expect

from airflow_provider_taskq.queue import Decision, NewTask, Result, State, TaskQueue
from tests.internals import lapse_lease
from tests.plugin.browser import OpenTab

pytestmark = [
    pytest.mark.slow,
    pytest.mark.promise("Each action is previewed, confirmed and audited, in one transaction"),
]


@pytest.fixture
def failed(acts: TaskQueue) -> list[int]:
    """Pushes five tasks that fail, and three that stay ready."""
    acts.push("work", [NewTask(f"task-{n}", {"n": n}) for n in range(8)])
    owner = acts.register("worker")
    polled = acts.poll("work", owner, 5)
    acts.complete(owner, {task: Decision(Result.FAILURE, error="the printer is on fire") for task in polled})
    return [task.sequence for task in polled]


def states(queue: TaskQueue, sequences: list[int]) -> list[State]:
    """The states of tasks."""
    return [found.state for found in (queue.task("work", sequence) for sequence in sequences) if found]


def confirm(page: Page, expected: str | re.Pattern[str]) -> str:
    """Confirms the dialog with the expected text, and returns the text of the result."""
    dialog = page.get_by_test_id("dialog")
    expect(dialog).to_contain_text(expected)
    expect(dialog.get_by_test_id("confirm")).to_be_enabled()
    dialog.get_by_test_id("confirm").click()
    done = dialog.get_by_test_id("message-success").inner_text()
    expect(page.get_by_test_id("announcement")).to_have_text(done)
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)
    return done


def tick(main: Locator, *sequences: int) -> None:
    """Selects tasks of the list."""
    for sequence in sequences:
        main.get_by_test_id("tasks").get_by_role("row").filter(has_text=f"#{sequence}").locator("label").click()


def test_a_user_resets_a_task_and_the_audit_log_names_the_user(
    tab: OpenTab, acts: TaskQueue, failed: list[int]
) -> None:
    role = acts.conn.info.user
    visit = tab()
    main = visit.view(conn_id="taskq_acts", topic="work", sequence=failed[0])
    expect(main.get_by_test_id("error")).to_contain_text("on fire")
    main.get_by_role("button", name="Retry").click()
    confirm(visit.page, "1")
    assert states(acts, failed) == [State.READY] + [State.FAILED] * 4
    expect(main.get_by_test_id("why")).to_contain_text("ready")
    expect(main.get_by_test_id("timeline")).to_contain_text(f"requested by admin via role {role}")
    main.get_by_role("link", name="Audit", exact=True).click()
    expect(main.get_by_test_id("audit").get_by_role("row").nth(1)).to_contain_text(
        re.compile(f"admin via role {re.escape(role)}.*retry.*work", re.DOTALL)
    )


def test_a_user_recreates_a_selection_and_reassigns_all_tasks_that_match(
    tab: OpenTab, acts: TaskQueue, failed: list[int]
) -> None:
    visit = tab()
    main = visit.view("tasks", conn_id="taskq_acts", topic="work", state="FAILED")
    tick(main, failed[1], failed[3])
    main.get_by_test_id("bulk").get_by_role("button", name="Retry").click()
    visit.page.get_by_test_id("dialog").get_by_label("How").select_option("APPEND")
    confirm(visit.page, "2")
    assert states(acts, failed) == [State.FAILED, State.RECREATED, State.FAILED, State.RECREATED, State.FAILED]
    assert acts.latest("work", ["task-1"])["task-1"].sequence > max(failed)
    main = visit.view("tasks", conn_id="taskq_acts", topic="work", state="FAILED", error="printer")
    main.get_by_test_id("bulk").get_by_role("button", name="Reassign").click()
    visit.page.get_by_test_id("dialog").get_by_label("New result").select_option("FILTER")
    confirm(visit.page, "3")
    assert states(acts, failed) == [State.FILTERED, State.RECREATED] * 2 + [State.FILTERED]


def test_a_purge_dialog_warns_before_the_confirmation(tab: OpenTab, acts: TaskQueue, failed: list[int]) -> None:
    visit = tab()
    main = visit.view("tasks", conn_id="taskq_acts", topic="work", state="FAILED")
    tick(main, failed[0])
    main.get_by_test_id("bulk").get_by_role("button", name="Purge").click()
    dialog = visit.page.get_by_test_id("dialog")
    expect(dialog.get_by_test_id("message-warning")).to_contain_text("cannot be undone")
    dialog.get_by_role("button", name="Cancel").click()
    assert len(states(acts, failed)) == 5
    main.get_by_test_id("bulk").get_by_role("button", name="Purge").click()
    confirm(visit.page, "cannot be undone")
    assert acts.task("work", failed[0]) is None
    expect(main.get_by_test_id("tasks").get_by_role("row")).to_have_count(5)


def test_the_push_form_checks_the_payload(tab: OpenTab, acts: TaskQueue) -> None:
    visit = tab()
    main = visit.view(conn_id="taskq_acts", topic="work")
    main.get_by_role("button", name="Push a task").click()
    dialog = visit.page.get_by_test_id("dialog")
    dialog.get_by_label("Identifier", exact=True).fill("by-hand")
    dialog.get_by_label("Payload, JSON").fill('{"n": 1,}')
    expect(dialog.get_by_test_id("json")).to_contain_text("JSON at position")
    expect(dialog.get_by_test_id("preview")).to_be_disabled()
    exact = '{"n": 12345678901234567890, "half": 0.5}'
    dialog.get_by_label("Payload, JSON").fill(exact)
    dialog.get_by_label("Priority").fill("101")
    dialog.get_by_test_id("preview").click()
    expect(dialog.get_by_role("alert")).to_contain_text("100")
    dialog.get_by_label("Priority").fill("7")
    dialog.get_by_label("Due").fill("2030-01-02T03:04:05")
    dialog.get_by_test_id("preview").click()
    confirm(visit.page, "by-hand")
    pushed = acts.latest("work", ["by-hand"])["by-hand"]
    assert pushed.payload == json.loads(exact)
    assert (pushed.priority, pushed.available_at.isoformat()) == (7, "2030-01-02T03:04:05+00:00")


def test_a_topic_is_paused_and_resumed(tab: OpenTab, acts: TaskQueue, failed: list[int]) -> None:
    visit = tab()
    main = visit.view(conn_id="taskq_acts", topic="work")
    main.get_by_role("button", name="Pause").click()
    confirm(visit.page, "work")
    expect(main.get_by_role("button", name="Resume")).to_be_visible()
    assert acts.poll("work", acts.register("other")) == []
    main.get_by_role("button", name="Resume").click()
    confirm(visit.page, "work")
    expect(main.get_by_role("button", name="Pause")).to_be_visible()
    assert [task.identifier for task in acts.poll("work", acts.register("other"))] == ["task-5"]
    assert failed


def test_a_user_releases_an_owner_and_expires_lapsed_leases(tab: OpenTab, acts: TaskQueue) -> None:
    acts.push("work", ["a", "b", "c"])
    acts.poll("work", acts.register("sleeper"), 2)
    dead = acts.register("dead")
    (task,) = acts.poll("work", dead)
    lapse_lease(acts.conn, "dead")
    visit = tab("op")
    main = visit.view("owners", conn_id="taskq_acts")
    expect(main.get_by_test_id("owners").get_by_role("row").filter(has_text="dead")).to_contain_text("lapsed")
    main.get_by_role("button", name="Expire lapsed leases").click()
    confirm(visit.page, "1")
    expired = acts.task("work", task.sequence)
    assert expired is not None
    assert expired.redelivered
    main.get_by_role("link", name="sleeper").click()
    expect(main.get_by_test_id("tasks").get_by_role("row")).to_have_count(3)
    main.get_by_role("button", name="Release").click()
    confirm(visit.page, "2")
    assert acts.ready("work", 10) == 3
    assert acts.owner("sleeper") is None


def test_a_dialog_shows_a_refusal_and_closes_with_the_view_that_opened_it(
    tab: OpenTab, acts: TaskQueue, failed: list[int]
) -> None:
    visit = tab()
    main = visit.view("tasks", conn_id="taskq_acts", topic="work")
    ready = acts.latest("work", ["task-7"])["task-7"].sequence
    tick(main, ready, failed[0])
    main.get_by_test_id("bulk").get_by_role("button", name="Retry").click()
    dialog = visit.page.get_by_test_id("dialog")
    expect(dialog.get_by_test_id("message-error")).to_contain_text(str(ready))
    expect(dialog.get_by_test_id("confirm")).to_be_disabled()
    dialog.get_by_role("button", name="Cancel").click()
    assert states(acts, failed) == [State.FAILED] * 5
    main.get_by_test_id("tasks").get_by_role("link", name=f"#{failed[0]}").click()
    main.get_by_role("button", name="Retry").click()
    expect(dialog).to_contain_text(f"#{failed[0]}")
    visit.page.go_back()
    expect(main.get_by_role("heading", name="Tasks", exact=True)).to_be_visible()
    expect(dialog).to_have_count(0)
