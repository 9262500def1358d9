"""The playground of the site, played in a browser on the built files, which a server on the loopback address serves."""

import functools
import os
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.plugin.browser import PATIENCE, QUIET, chromium
from tests.programs import load

__all__ = ["chromium"]  # a fixture that pytest finds here

pytestmark = [
    pytest.mark.slow,
    pytest.mark.documents,
    pytest.mark.promise("The examples, and the code of each page of this site, run as they are written"),
]

HTML = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Playground</title>
<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,"><body>{element}</body></html>"""
EVERY_FUNCTION = Path(__file__).with_name("every_function.sql")
CALL_EACH = """async (statements) => {
    const { Database } = await import("./playground/database.js");
    const database = await Database.start(() => {});
    const failed = [];
    for (const sql of statements) {
        try { await database.run(sql); } catch (error) { failed.push(`${sql}: ${error.code} ${error.message}`); }
    }
    const named = "SELECT DISTINCT proname FROM pg_proc WHERE pronamespace = 'taskq'::regnamespace";
    const [{ rows }] = await database.run(named);
    return { failed, functions: rows.flat() };
}"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def builder(repository: Path) -> ModuleType:
    """The module `tools/playground.py`."""
    return load(repository / "tools" / "playground.py")


@pytest.fixture(scope="module")
def site(builder: ModuleType, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the playground as the site has it, on a page of its own."""
    try:
        files = builder.build()
    except builder.PlaygroundError as error:
        if os.environ.get("TASKQ_PLAYGROUND") == "required":
            raise
        pytest.skip(f"the playground cannot be built: {error}")
    folder: Path = tmp_path_factory.mktemp("playground-site")
    shutil.copytree(repository / "docs" / "playground", folder / "playground")
    shutil.copytree(files, folder / "playground" / "files")
    home = (repository / "docs" / "index.md").read_text(encoding="utf-8")
    found = re.search(r"<taskq-playground>.*?</script>", home, re.DOTALL)
    assert found is not None, "docs/index.md has the playground"
    (folder / "index.html").write_text(HTML.format(element=found[0]), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    """Where the folder is served."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def lone_browser(chromium: str) -> Iterator[Browser]:
    """A browser that resolves no name, so that it reaches the loopback address only."""
    arguments = ["--no-first-run", *(f"--disable-{what}" for what in QUIET)]
    arguments.append("--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1")
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield browser
        browser.close()


@dataclass
class Visit:
    """A tab with the playground, its requests and its errors."""

    page: Page
    requests: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def start(self) -> Locator:
        """Start PostgreSQL, and return the playground."""
        self.page.get_by_role("button", name="Start PostgreSQL in this page").click()
        expect(self.page.get_by_role("tab", name="Guided tour")).to_be_visible(timeout=PATIENCE)
        return self.page.locator("taskq-playground")

    def start_free_play(self) -> Locator:
        """Start PostgreSQL, and go on to free play."""
        playground = self.start()
        self.page.get_by_role("tab", name="Free play").click()
        expect(task(playground, 1)).to_contain_text("READY")
        return playground

    def script(self) -> str:
        """What `Copy as a script` copies."""
        copied: str = self.page.locator("taskq-playground").evaluate("(element) => element.transcript.script")
        return copied


@pytest.fixture
def visit(lone_browser: Browser, url: str) -> Iterator[Visit]:
    """A visit of the page, in which no script fails."""
    context = lone_browser.new_context(locale="en-GB", timezone_id="UTC", reduced_motion="reduce")
    context.set_default_timeout(PATIENCE)
    visit = Visit(context.new_page())
    context.on("request", lambda request: visit.requests.append(request.url))
    context.on("weberror", lambda error: visit.faults.append(str(error.error)))
    context.on("console", lambda said: visit.faults.append(said.text) if said.type == "error" else None)
    visit.page.goto(url)
    yield visit
    faults = list(visit.faults)
    context.close()
    assert faults == []


def task(playground: Locator, sequence: int) -> Locator:
    """A task in the list."""
    return playground.locator(f'[data-sequence="{sequence}"]')


def act(playground: Locator, label: str, sequence: int) -> None:
    """Click an action of a task."""
    playground.get_by_role("button", name=f"{label}: task {sequence}", exact=True).click()


def states(dsn: str, script: str, topic: str) -> list[tuple[Any, ...]]:
    """Run a script on a real server, and return the states of the tasks."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        for statement in script.split(";\n"):
            if statement:
                conn.execute(statement.encode())
        query = "SELECT sequence, identifier, state, attempt FROM taskq.tasks WHERE topic = %s ORDER BY sequence"
        return conn.execute(query, (topic,)).fetchall()


@pytest.mark.own_database
def test_a_visitor_pushes_polls_fails_asks_why_and_retries(visit: Visit, own_dsn: str, url: str) -> None:
    loaded = [url for url in visit.requests if "/files/" in url]
    assert [url.rpartition("/")[2] for url in loaded] == ["manifest.json"], "nothing is loaded before the start"
    visit.page.set_viewport_size({"width": 400, "height": 800})
    playground = visit.start_free_play()
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 400
    playground.get_by_label("Identifier").fill("parcel-7")
    playground.get_by_label("Payload (JSON)").fill('{"to": "Lyon"}')
    playground.get_by_label("Priority (-100 to 100)").fill("5")
    playground.get_by_role("button", name="Push", exact=True).click()
    expect(task(playground, 2)).to_contain_text("READY")
    playground.get_by_label("Lease", exact=True).select_option("5 minutes")
    playground.get_by_role("button", name="Poll", exact=True).click()
    expect(task(playground, 2)).to_contain_text("held by worker-a · attempt 1")
    expect(task(playground, 1)).to_contain_text("READY")  # it has the lower priority
    act(playground, "Failure", 2)
    expect(task(playground, 2)).to_contain_text("1 attempt failed")
    act(playground, "Why?", 2)
    expect(task(playground, 2)).to_contain_text(re.compile(r"it is (to be tried again in \d+ s: Timeout|ready)"))
    if playground.get_by_role("button", name="Run now: task 2").count():  # else the ten seconds have passed
        act(playground, "Run now", 2)
    playground.get_by_role("button", name="Poll", exact=True).click()
    expect(task(playground, 2)).to_contain_text("held by worker-a · attempt 2")
    act(playground, "Success", 2)
    expect(task(playground, 2)).to_contain_text("SUCCEEDED")
    assert "SELECT taskq.push('parcels', 'parcel-7', '{\"to\": \"Lyon\"}', priority => 5);" in visit.script()
    assert states(own_dsn, visit.script(), "parcels") == [(1, "parcel-1", "READY", 0), (2, "parcel-7", "SUCCEEDED", 2)]
    act(playground, "Revive", 2)
    expect(task(playground, 2)).to_contain_text("READY")
    assert [request for request in visit.requests if not request.startswith((url, "data:", "blob:"))] == []
    assert any(request.endswith("/pglite.wasm.gz") for request in visit.requests)  # those of the worker are seen, too


def test_a_lease_expires_and_its_worker_is_refused(visit: Visit) -> None:
    playground = visit.start_free_play()
    playground.get_by_label("Lease", exact=True).select_option("2 seconds")
    playground.get_by_role("button", name="Poll", exact=True).click()
    expect(playground.locator('[data-worker="worker-a"]')).to_contain_text("lease lapsed")
    expect(task(playground, 1)).to_contain_text("ACTIVE")  # until a session calls expire()
    playground.get_by_role("button", name="Expire lapsed leases").click()
    expect(task(playground, 1)).to_contain_text("READY")
    prompt = playground.get_by_label("Your own SQL")
    prompt.fill("SELECT taskq.complete('worker-a', 1, '{1}', '{3}')")
    prompt.press("Control+Enter")
    expect(playground.locator(".tq-failed")).to_contain_text("ERROR:  TQ005: the lease of owner 'worker-a'")
    expect(playground.get_by_role("status")).to_contain_text("the lease of owner 'worker-a'")


def test_the_tour_runs_with_the_keyboard_alone_and_is_the_session_on_its_page(visit: Visit, repository: Path) -> None:
    visit.page.get_by_role("button", name="Start PostgreSQL in this page").focus()
    visit.page.keyboard.press("Enter")
    playground = visit.page.locator("taskq-playground")
    said = []
    for step in range(1, 7):
        expect(playground.get_by_role("heading", name=f"{step}. ")).to_be_visible(timeout=PATIENCE)
        button = playground.get_by_role("button", name="Run this step")
        for _ in range(40):
            if button.evaluate("(element) => element === document.activeElement"):
                break
            visit.page.keyboard.press("Tab")
        visit.page.keyboard.press("Enter")
        expect(playground.locator(".tq-outcome")).to_be_visible(timeout=PATIENCE)
        said.append(playground.locator(".tq-outcome").inner_text())
        assert playground.get_by_role("status").inner_text() == said[-1]  # a screen reader hears it
        visit.page.keyboard.press("Enter")  # the next button has the focus
    assert "one at a time per identifier, it comes after sequence 1" in said[2]
    assert "it is to be tried again in" in said[3]
    assert "given up after 2 of 2 attempts" in said[4]
    assert "whole cycle" in said[5]
    expect(playground.get_by_role("tab", name="Free play")).to_have_attribute("aria-selected", "true")
    expect(playground.locator(".tq-refused")).to_contain_text("TQ005")
    expect(playground.locator(".tq-failed")).to_have_count(0)
    recorded = (repository / "docs" / "playground" / "index.md").read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"```sql\n(.*?)```", recorded, re.DOTALL))
    tour = visit.script().partition("SELECT taskq.create_topic('parcels'")[0]
    assert blocks == tour


def test_every_function_of_the_schema_runs_in_the_browser(visit: Visit) -> None:
    text = re.sub(r"^--.*$", "", EVERY_FUNCTION.read_text(encoding="utf-8"), flags=re.MULTILINE)
    statements = [part.strip() for part in re.split(r";\s*\n", text) if part.strip()]
    called = set(re.findall(r"\btaskq\.(\w+)\(", text))
    result = visit.page.evaluate(CALL_EACH, statements)
    assert result["failed"] == []
    assert set(result["functions"]) - called == set()


def test_without_the_built_files_the_page_says_so_and_links_to_the_recorded_session(visit: Visit) -> None:
    visit.page.route("**/files/manifest.json", lambda route: route.fulfill(status=404))
    visit.page.reload()
    alert = visit.page.get_by_role("alert")
    expect(alert).to_contain_text("built without PostgreSQL for the browser")
    expect(alert.get_by_role("link")).to_be_visible()
    visit.faults.clear()  # the 404


def test_a_database_that_cannot_start_is_reported_and_nothing_is_faked(visit: Visit) -> None:
    visit.page.context.route("**/pglite.wasm.gz", lambda route: route.abort())
    visit.page.get_by_role("button", name="Start PostgreSQL in this page").click()
    expect(visit.page.get_by_role("alert")).to_contain_text("PostgreSQL could not start in this browser")
    expect(visit.page.get_by_role("button", name="Try again")).to_be_visible()
    assert visit.page.locator("[data-sequence]").count() == 0
    visit.faults.clear()  # the aborted request
