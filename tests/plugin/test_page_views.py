"""Each view of the page, in a real browser and a real Airflow."""

import json
import re
from http import HTTPStatus
from typing import Any

import httpx
import psycopg
import pytest
from playwright.sync_api import Locator, Page, Route, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from airflow_provider_taskq.queue import Result, State, TaskQueue, connect
from airflow_provider_taskq.queue.owner_names import worker_instance_id, worker_owner_name
from tests.airflow.site import SharedAirflow
from tests.plugin.browser import OpenTab, Visit, is_api
from tests.plugin.situations import HOLDER, HOSTILE, HOSTILE_TEXT, SECRET

pytestmark = [
    pytest.mark.slow,
    pytest.mark.promise("Each view shows what it names, and leads to the reason of a stuck task"),
]

# Sets fields, clicks (null) and presses Enter. Between the steps the URL changes, and React renders nothing.
AT_ONCE = """async (steps) => {
    for (const [element, text] of steps) {
        if (text === null) element.click();
        else if (text === "Enter") element.dispatchEvent(new KeyboardEvent("keydown", {key: text, bubbles: true}));
        else {
            Object.getOwnPropertyDescriptor(element.constructor.prototype, "value").set.call(element, text);
            element.dispatchEvent(new Event(element.tagName === "SELECT" ? "change" : "input", {bubbles: true}));
        }
        for (let turn = 0; turn < 1000; turn += 1) await null;
    }
}"""
VIEWS = {
    "Topics": ("topics", "orders"),
    "Owners": ("owners", HOLDER),
    "Locks": ("locks", "nightly-maintenance"),
    "Consumer groups": ("consumer_groups", "warehouse"),
    "Ticks": ("ticks", "reports/daily"),
    "Health": ("health", "waiting tasks"),
}


def test_every_tab_leads_to_its_view(tab: OpenTab) -> None:
    visit = tab()
    main = visit.view()
    for title, (testid, text) in VIEWS.items():
        main.get_by_role("link", name=title, exact=True).click()
        expect(main.get_by_role("heading", name=title, exact=True)).to_be_visible()
        expect(main.get_by_test_id(testid)).to_contain_text(text)
        expect(main.get_by_test_id("as-of")).to_have_text(re.compile(r"as of \d\d:\d\d:\d\d"))


def test_topics_are_sorted_by_a_click_on_a_column_and_limited_to_trouble_with_totals(tab: OpenTab) -> None:
    visit = tab()
    main = visit.view()
    topics = main.get_by_test_id("topics")
    topics.get_by_role("button", name="Failed").click()
    expect(topics.get_by_role("columnheader", name="Failed")).to_have_attribute("aria-sort", "descending")
    expect(topics.locator("tbody tr").first).to_contain_text("payments")
    topics.get_by_role("button", name="Failed").click()
    expect(visit.page).to_have_url(re.compile("sort=failed&order=asc"))
    expect(topics.locator("tbody tr").last).to_contain_text("payments")
    expect(main.get_by_role("link", name="empty", exact=True)).to_be_visible()
    main.get_by_text("Only topics in trouble").click()
    expect(main.get_by_role("link", name="empty", exact=True)).to_have_count(0)  # others may have been due for too long
    expect(main.get_by_role("link", name="reports", exact=True)).to_be_visible()
    names = topics.locator("tbody tr td:first-child a").all_inner_texts()
    assert {"payments", "reports"} < set(names)
    expect(topics.locator("tfoot")).to_contain_text(f"{len(names)} topics")
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


def test_a_link_of_an_operator_shows_its_topic(tab: OpenTab) -> None:
    visit = tab()
    main = visit.go("plugin/taskq", topic="orders", conn_id="taskq_page").get_by_test_id("taskq")
    expect(main.get_by_role("heading", name="orders", exact=True)).to_be_visible()
    expect(main.get_by_role("img", name=re.compile("Last hour: .* succeeded"))).to_be_visible()
    expect(main.get_by_role("img", name=re.compile("Last day: .* succeeded"))).to_be_visible()
    expect(main.get_by_test_id("consumers")).to_contain_text(HOLDER)
    expect(main.get_by_test_id("tasks")).to_contain_text("order-59")


def test_lists_and_the_timeline_show_queue_time_and_run_time(tab: OpenTab, page_dsns: dict[str, str]) -> None:
    visit = tab()
    with connect(page_dsns["situations"], autocommit=True) as conn:
        page = TaskQueue(conn).page("orders", size=100)
    ended = next(task for task in page if task.state is State.SUCCEEDED)
    held = next(task for task in page if task.state is State.ACTIVE)
    ready = next(task for task in page if task.identifier == "later")
    for task, times in ((ended, r"waited [\d.]+ m?s · ran [\d.]+ m?s"), (held, r"waited .+ · running for .+")):
        main = visit.view(topic="orders", view="tasks", identifier=task.identifier)
        expect(main.get_by_test_id("tasks")).to_contain_text(re.compile(times))
        main = visit.view(topic="orders", sequence=task.sequence)
        expect(main.get_by_test_id("times")).to_have_text(re.compile(f"^{times}$"))
        expect(main.get_by_role("definition").filter(has_text=re.compile(f"^{times}$"))).to_have_count(1)
    main = visit.view(topic="orders", sequence=ready.sequence)
    expect(main.get_by_test_id("timeline")).to_be_visible()
    expect(main.get_by_test_id("times")).to_have_count(0)


def test_the_url_holds_the_filter(tab: OpenTab) -> None:
    visit = tab()
    main = visit.view("tasks", topic="payments")
    main.get_by_label("Status", exact=True).select_option("failed")
    expect(visit.page).to_have_url(re.compile("status=failed"))
    rows = main.get_by_test_id("tasks").get_by_role("row")
    expect(rows).to_have_count(6)
    main.get_by_label("Order").select_option("oldest")
    expect(visit.page).to_have_url(re.compile("order=oldest"))
    expect(main.get_by_label("Order")).to_have_value("oldest")
    main.get_by_role("button", name="More filters").click()
    main.get_by_label("Error contains").fill("gateway")
    expect(visit.page).to_have_url(re.compile("error=gateway"))
    main.get_by_label("Pushed since").fill("2020-01-02T03:04")
    expect(visit.page).to_have_url(re.compile("since=2020-01-02T03%3A04%3A00.000Z"))
    visit.page.reload()
    expect(main.get_by_label("Error contains")).to_have_value("gateway")
    expect(main.get_by_label("Pushed since")).to_have_value("2020-01-02T03:04")
    expect(main.get_by_label("Order")).to_have_value("oldest")
    expect(rows).to_have_count(6)
    sequences = [int(text.removeprefix("#")) for text in rows.locator("td >> text=/^#\\d+$/").all_inner_texts()]
    assert sequences == sorted(sequences)
    main.get_by_role("button", name="Clear").click()
    expect(visit.page).not_to_have_url(re.compile("status="))


def test_choices_and_texts_of_before_the_page_renders_the_new_url_are_kept_and_lead_nowhere_else(
    tab: OpenTab,
) -> None:
    visit = tab()
    main = visit.view("tasks")
    expect(main.locator("datalist option[value=orders]")).to_be_attached()
    topic = main.get_by_label("Topic", exact=True)
    at_once(main, (topic, "orders"), (topic, "orders-of-yesterday"))
    expect(main.get_by_test_id("tasks")).to_contain_text("order-59")
    expect(topic).to_have_value("orders-of-yesterday")
    main = visit.view("tasks", topic="payments")
    expect(main.get_by_test_id("tasks")).to_contain_text("payment-")
    state, order = main.get_by_label("Status", exact=True), main.get_by_label("Order")
    at_once(main, (state, "failed"), (order, "oldest"))
    expect(visit.page).to_have_url(re.compile("status=failed.*order=oldest"))
    expect(state).to_have_value("failed")
    expect(order).to_have_value("oldest")
    field, link = main.get_by_label("Identifier"), main.get_by_role("link", name="Audit", exact=True)
    at_once(main, (field, "payment-1"), (link, None), (field, "Enter"))
    expect(main.get_by_role("heading", name="Audit", exact=True)).to_be_visible()
    assert "identifier" not in visit.page.url


def at_once(main: Locator, *steps: tuple[Locator, str | None]) -> None:
    """Acts on each element before the page has rendered the previous step."""
    main.evaluate(f"(main, steps) => ({AT_ONCE})(steps)", [[one.element_handle(), text] for one, text in steps])


def test_pages_lead_forward_and_back(tab: OpenTab) -> None:
    visit = tab()
    main = visit.view("tasks", topic="orders")
    rows = main.get_by_test_id("tasks").get_by_role("row")
    expect(rows).to_have_count(51)
    first = rows.nth(1).inner_text()
    main.get_by_role("button", name="Next").click()
    expect(rows).to_have_count(13)
    main.get_by_role("button", name="First page").click()
    expect(rows).to_have_count(51)
    assert rows.nth(1).inner_text().split()[:2] == first.split()[:2]


def test_empty_and_unreachable_views_show_a_notice(tab: OpenTab) -> None:
    visit = tab()
    main = visit.view(topic="empty")
    expect(main.get_by_test_id("empty")).to_contain_text("No task yet")
    expect(visit.view("tasks").get_by_test_id("empty")).to_contain_text("Choose a topic")
    expect(visit.view(conn_id="taskq_down").get_by_test_id("failure")).to_be_visible()
    expect(visit.view(conn_id="taskq_bare").get_by_test_id("failure")).to_be_visible()
    expect(visit.view(conn_id="taskq_hidden").get_by_test_id("empty")).to_contain_text("taskq_hidden")
    expect(visit.view(topic="orders", sequence=10**9).get_by_test_id("failure")).to_be_visible()
    assert "marked-password" not in visit.page.content()


def test_a_viewer_sees_no_button_to_act_or_to_reveal(tab: OpenTab, page_dsns: dict[str, str]) -> None:
    with connect(page_dsns["situations"], autocommit=True) as conn:
        sequence = TaskQueue(conn).latest("payments", ["payment-0"])["payment-0"].sequence
    buttons = re.compile("^(Retry|Reassign|Purge|Reveal|Push|Pause|Release|Expire)")
    visit = tab("viewer")
    main = visit.view(topic="payments", sequence=sequence)
    expect(main.get_by_test_id("masked")).to_contain_text("right to edit")
    expect(main.get_by_role("button", name=buttons)).to_have_count(0)
    main = visit.view(topic="payments")
    expect(main.get_by_test_id("tasks")).to_be_visible()
    expect(main.get_by_role("button", name=buttons)).to_have_count(0)
    expect(main.get_by_text("view only")).to_be_visible()


@pytest.mark.promise("No view shows a payload until it is revealed, and that leaves a trace")
def test_a_payload_is_hidden_until_the_user_reveals_it(tab: OpenTab, page_dsns: dict[str, str]) -> None:
    with connect(page_dsns["situations"], autocommit=True) as conn:
        sequence = TaskQueue(conn).latest("orders", ["order-10"])["order-10"].sequence
    visit = tab()
    main = visit.view(topic="orders", sequence=sequence)
    expect(main.get_by_test_id("masked")).to_contain_text("Hidden: payload")
    assert SECRET not in visit.page.content()
    main.get_by_role("button", name="Reveal").click()
    expect(main.get_by_test_id("payload")).to_contain_text(SECRET)
    main.get_by_role("button", name="Hide").click()
    expect(main.get_by_test_id("masked")).to_be_visible()
    assert SECRET not in visit.page.content()


@pytest.mark.promise("Hostile names, payloads and errors stay text")
def test_hostile_texts_stay_texts(tab: OpenTab, page_dsns: dict[str, str]) -> None:
    policy = (
        "default-src 'self' data: blob:; script-src-attr 'none'; script-src-elem 'self' 'unsafe-inline';"
        " style-src 'self' 'unsafe-inline'; img-src 'self' data:; object-src 'none'; form-action 'none'"
    )
    with connect(page_dsns["situations"], autocommit=True) as conn:
        sequence = TaskQueue(conn).latest(HOSTILE, [HOSTILE_TEXT])[HOSTILE_TEXT].sequence
    visit = tab(alone=True)

    def strict(route: Route) -> None:
        """Adds a policy: Airflow sends its document without one."""
        response = route.fetch()
        headers = {**response.headers, "content-security-policy": policy}
        route.fulfill(response=response, headers=headers)

    visit.page.route(re.compile(r"/plugin/taskq"), strict)
    main = visit.view()
    main.get_by_role("link", name=HOSTILE).click()
    expect(main.get_by_role("heading", name=HOSTILE)).to_be_visible()
    main.get_by_test_id("tasks").get_by_role("link", name=f"#{sequence}").click()
    expect(main.get_by_test_id("error")).to_contain_text(HOSTILE_TEXT)
    main.get_by_role("button", name="Reveal").click()
    expect(main.get_by_test_id("payload")).to_contain_text("onerror")
    main.get_by_role("button", name="Retry").click()
    dialog = visit.page.get_by_test_id("dialog")
    expect(dialog).to_contain_text(HOSTILE)
    expect(dialog.locator(":focus")).to_have_count(1)  # only a focused dialog listens to Escape
    visit.page.keyboard.press("Escape")
    main.get_by_role("link", name="Owners", exact=True).click()
    expect(main.get_by_test_id("owners")).to_contain_text(HOSTILE_TEXT)
    visit.check()
    filtered = dict.fromkeys(("identifier", "reference", "error", "state", "since", "search"), HOSTILE_TEXT)
    main = visit.view(HOSTILE_TEXT, topic=HOSTILE, **filtered)
    expect(main.get_by_role("heading", name="Topics")).to_be_visible()
    main = visit.view("tasks", topic=HOSTILE, error=HOSTILE_TEXT, identifier=HOSTILE_TEXT)
    expect(main.get_by_label("Error contains")).to_have_value(HOSTILE_TEXT)
    expect(main.get_by_test_id("tasks")).to_contain_text(HOSTILE_TEXT)


def test_a_hidden_tab_loads_nothing_and_a_visible_one_at_once(tab: OpenTab) -> None:
    visit = tab(alone=True)  # the clock of `install` applies to all tabs of a session, also afterwards
    page = visit.page
    page.clock.install()
    main = visit.view("owners")
    expect(main.get_by_test_id("owners")).to_be_visible()
    asks = is_api("owners")
    with page.expect_request(asks):
        page.clock.fast_forward(60_000)  # the longest pause of a view
    _show(visit.page, hidden=True)
    page.clock.fast_forward(600_000)
    seen = len(list(filter(asks, visit.requests)))
    page.clock.fast_forward(600_000)
    with page.expect_request(asks):
        _show(visit.page, hidden=False)
    assert len(list(filter(asks, visit.requests))) == seen + 1
    live = main.get_by_text("Live", exact=True)
    live.click()
    expect(live).to_have_attribute("data-state", "unchecked")
    stopped = len(list(filter(asks, visit.requests)))
    for _ in range(2):
        page.clock.fast_forward(600_000)
    assert len(list(filter(asks, visit.requests))) == stopped
    with page.expect_request(asks):
        live.click()
    assert len(list(filter(is_api("connections"), visit.requests))) == 1


def _show(page: Page, *, hidden: bool) -> None:
    """Sends the event of a hidden or visible tab, as the browser does."""
    page.evaluate(
        "(hidden) => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange')); }",
        hidden,
    )


# The page lays itself out again some time after the window has its new size.
FITS = """([main, width]) =>
    innerWidth === width && main.scrollWidth <= main.clientWidth && document.body.scrollWidth <= width"""

NARROWED = """main => {
    main.style.width = "250px"
    const width = main.querySelector("[role=search]").scrollWidth
    main.style.width = ""
    return width
}"""

WIDEST = """width => [innerWidth, document.body.scrollWidth, ...[...document.querySelectorAll("body *")]
    .filter(each => each.getBoundingClientRect().right > width || each.scrollWidth > each.clientWidth + 1)
    .map(each => `${each.tagName}.${each.className} ${each.scrollWidth} of ${each.clientWidth}: ${each.textContent}`
        .slice(0, 150))].slice(0, 12)"""


@pytest.mark.promise("The page works with the keyboard alone, and fits screens from 320 px to 4K")
def test_no_view_is_wider_than_the_screen(tab: OpenTab) -> None:
    visit = tab()
    for view, topic in (("topics", None), ("tasks", "payments"), (None, "orders"), ("owners", None), ("health", None)):
        main = visit.view(view, topic=topic)
        expect(main.get_by_role("table").first).to_be_visible()
        for width in (320, 390, 1440, 3840):
            visit.page.set_viewport_size({"width": width, "height": 900})
            try:
                visit.page.wait_for_function(FITS, arg=[main.element_handle(), width])
            except PlaywrightTimeoutError:
                pytest.fail(f"{view or topic} at {width}: {visit.page.evaluate(WIDEST, width)}")
        assert main.evaluate(NARROWED) <= 250, "the search field fits without knowing the width of the screen"


@pytest.mark.promise("The page works with the keyboard alone, and fits screens from 320 px to 4K")
def test_every_control_works_with_the_keyboard(tab: OpenTab) -> None:
    visit = tab()
    main = visit.view()
    expect(main.get_by_test_id("topics")).to_be_visible()
    _tab_to(visit.page, "reports")
    visit.page.keyboard.press("Enter")
    heading = main.get_by_role("heading", name="reports", exact=True)
    expect(heading).to_be_focused()
    expect(main.get_by_test_id("tasks")).to_be_visible()
    _tab_to(visit.page, "report-1")
    visit.page.keyboard.press("Enter")
    expect(main.get_by_test_id("why")).to_contain_text("paused")
    _tab_to(visit.page, "Purge")
    visit.page.keyboard.press("Enter")
    dialog = visit.page.get_by_test_id("dialog")
    expect(dialog.get_by_test_id("confirm")).to_be_enabled()
    expect(dialog.locator(":focus")).to_have_count(1)  # a focused dialog keeps the focus
    for _ in range(4):
        visit.page.keyboard.press("Tab")
        assert dialog.evaluate("(dialog) => dialog.contains(document.activeElement)")
    visit.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(main.get_by_role("button", name="Purge")).to_be_focused()


def _tab_to(page: Page, text: str) -> None:
    """Presses Tab until the element with the text has the focus."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == text:
            return
    raise AssertionError(f"no tabulator leads to {text}")


def test_every_control_of_the_page_has_a_name(tab: OpenTab) -> None:
    visit = tab()
    main = visit.view("tasks", topic="payments")
    expect(main.get_by_test_id("tasks")).to_be_visible()
    expect(visit.page.get_by_role("main")).to_have_count(1)
    expect(visit.page.get_by_role("navigation", name="TaskQ")).to_have_count(1)
    expect(visit.page.get_by_role("search", name="Filter tasks")).to_have_count(1)
    expect(main.get_by_role("link", name="Tasks", exact=True)).to_have_attribute("aria-current", "page")
    nameless = main.evaluate(
        """(main) => [...main.querySelectorAll("button, a, input, select, textarea, svg[role=img]")].filter((one) =>
            one.getAttribute("aria-hidden") !== "true" && !one.getAttribute("aria-label") && !one.textContent.trim()
            && !(one.labels && one.labels.length)).map((one) => one.outerHTML)"""
    )
    assert nameless == []


def store_result(page_site: SharedAirflow, task_id: str, returned: dict[str, Any]) -> None:
    """Stores the XCom of an operator as Airflow does."""
    answer = httpx.post(
        f"{page_site.base_url}/api/v2/dags/shop/dagRuns/manual__1/taskInstances/{task_id}/xcomEntries",
        headers={"Authorization": f"Bearer {page_site.token('admin')}"},
        json={"key": "return_value", "value": returned, "map_index": -1},
        trust_env=False,
        timeout=60,
    )
    assert answer.status_code == HTTPStatus.CREATED, answer.text


def render(page_site: SharedAirflow, task_id: str, fields: dict[str, Any]) -> None:
    """Stores rendered fields as a worker does before it runs an operator; no worker runs here."""
    with psycopg.connect(page_site.metadata_dsn) as metadata:
        metadata.execute(
            "INSERT INTO rendered_task_instance_fields (dag_id, run_id, task_id, map_index, rendered_fields)"
            " VALUES ('shop', 'manual__1', %s, -1, %s)",
            (task_id, json.dumps(fields)),
        )


def panel_of(visit: Visit, task_id: str) -> Locator:
    """Opens the panel of a task instance."""
    return visit.go(f"dags/shop/runs/manual__1/tasks/{task_id}/plugin/taskq-tasks").get_by_test_id("taskq-panel")


def test_the_panel_shows_the_tasks_that_the_instance_pushed_or_waits_for_and_none_of_another_operator(
    tab: OpenTab, page_site: SharedAirflow, page_dsns: dict[str, str]
) -> None:
    with connect(page_dsns["situations"], autocommit=True) as conn:
        found = TaskQueue(conn).latest("orders", ["order-0", "order-59"])
    # The XCom of the push operator.
    returned = {"topic": "orders", "pushed": 60, "first": found["order-0"].sequence, "last": found["order-59"].sequence}
    store_result(page_site, "push", returned)
    visit = tab()
    panel = panel_of(visit, "push")
    expect(panel.get_by_test_id("pushed").get_by_role("row")).to_have_count(51)
    expect(panel.get_by_test_id("pushed")).to_contain_text("order-0")
    fields = {"topic": "orders", "identifiers": ["order-10", "never-pushed"], "taskq_conn_id": "taskq_page"}
    render(page_site, "settled", fields)
    waits = panel_of(visit, "settled").get_by_test_id("waits-for").get_by_role("row")
    expect(waits.nth(1)).to_contain_text(re.compile("order-10.*succeeded", re.DOTALL))
    expect(waits.nth(2)).to_contain_text(re.compile("never-pushed.*none yet", re.DOTALL))
    expect(panel_of(visit, "other")).to_contain_text("Not a task of TaskQ")


def test_the_panel_of_a_drain_shows_the_tasks_of_its_workers_and_links_back(
    tab: OpenTab, page_site: SharedAirflow, acts: TaskQueue
) -> None:
    acts.push("work", [f"n{n}" for n in range(10)])
    for number in (1, 2):
        acts.poll("work", acts.register(worker_owner_name("shop/manual__1/drain/-1", worker_instance_id(), number)), 5)
    render(page_site, "drain", {"topic": "work", "taskq_conn_id": "taskq_acts"})
    visit = tab()
    panel = panel_of(visit, "drain")
    expect(panel.get_by_test_id("holds").get_by_role("row")).to_have_count(11)
    panel.get_by_test_id("holds").get_by_role("link", name=re.compile("^#")).first.click()
    visit.page.get_by_test_id("taskq").get_by_role("link", name="Task instance").first.click()
    expect(visit.page).to_have_url(re.compile("/dags/shop/runs/manual__1/tasks/drain"))
    expect(visit.page.get_by_text("drain").first).to_be_visible()
    expect(visit.page.get_by_text("No Task Instance found")).to_have_count(0)


def test_the_panel_of_a_sensor_shows_the_states_of_its_claim(
    tab: OpenTab, page_site: SharedAirflow, acts: TaskQueue
) -> None:
    acts.push("work", [f"n{n}" for n in range(20)])
    owner = acts.register("shop/manual__1/gate/-1")
    held = acts.poll("work", owner, 20)
    acts.complete(owner, {task: Result.FAILURE if n < 2 else Result.SUCCESS for n, task in enumerate(held)})
    store_result(page_site, "gate", {"topic": "work", "owner": owner.name, "fence": owner.fence, "claimed": 20})
    render(page_site, "gate", {"topic": "work", "taskq_conn_id": "taskq_acts", "min_tasks": "1", "claim": "20"})
    visit = tab()
    panel = panel_of(visit, "gate")
    expect(panel.get_by_test_id("claim")).to_contain_text("Claimed 20: 18 succeeded, 2 failed.")
    panel.get_by_test_id("claimed").get_by_role("link", name=re.compile("^#")).first.click()
    expect(visit.page.get_by_test_id("why")).to_be_visible()
