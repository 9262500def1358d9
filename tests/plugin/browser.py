"""Debian's Chromium, or any Chrome on the PATH, driven by Playwright, which downloads nothing."""

import functools
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, BrowserContext, Dialog, Locator, Page, Request, expect, sync_playwright

from tests.airflow.site import SharedAirflow

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
QUIET = ("gpu", "background-networking", "component-update", "sync")
PATIENCE = 90_000  # milliseconds: a bound for a loaded machine, and more than the AT_MOST of polling.js
# Records everything that the policy forbids; hostile text would set window.hacked.
WATCH = """
window.refused = [];
document.addEventListener("securitypolicyviolation", (event) =>
    window.refused.push(`${event.violatedDirective} ${event.blockedURI}`));
"""
# Goes to another URL inside Airflow, as a link does.
MOVE = "(url) => { history.pushState(null, '', url); dispatchEvent(new PopStateEvent('popstate')); }"

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The program of the browser. Without one, tests that need it are skipped, except in CI."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        missing = "no Chromium is on the PATH: `apt-get install chromium`, and the page is tested as well"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """A browser for the tests of a module: while Playwright is open, no other test here can run an event loop."""
    arguments = ["--no-first-run", *(f"--disable-{what}" for what in QUIET)]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield browser
        browser.close()


class Visit:
    """A tab that records its requests and its errors."""

    def __init__(self, page: Page, base_url: str) -> None:
        self.page = page
        self.requests: list[Request] = []
        self.faults: list[str] = []
        self._base_url = base_url
        page.on("request", lambda request: self.requests.append(request))
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("dialog", self._dialog)
        page.add_init_script(WATCH)

    def _dialog(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def go(self, path: str, **query: str | int | None) -> Page:
        """Opens a path below Airflow's base URL. A tab that shows Airflow already navigates inside it."""
        parameters = {name: value for name, value in query.items() if value is not None}
        url = f"{self._base_url}/{path}" + (f"?{urlencode(parameters)}" if parameters else "")
        if self.page.url.startswith(self._base_url):
            self.page.evaluate(MOVE, url)
        else:
            self.page.goto(url)
        return self.page

    def view(self, view: str | None = None, conn_id: str = "taskq_page", **query: str | int | None) -> Locator:
        """Opens a view of the page, and returns the page's main part."""
        return self.go("plugin/taskq", view=view, conn_id=conn_id, **query).get_by_test_id("taskq")

    def show(self, width: int, height: int, dark: bool) -> None:
        """Gives the tab a size and a color scheme, and forgets the requests that it has made."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(color_scheme="dark" if dark else "light")
        self.requests.clear()

    def check(self) -> None:
        """Asserts that the policy forbade nothing, no error occurred, and no data ran as code."""
        state: dict[str, Any] = self.page.evaluate("({refused: window.refused ?? [], hacked: window.hacked ?? null})")
        assert state == {"refused": [], "hacked": None}
        assert self.faults == []


OpenTab = Callable[..., Visit]


OpenSession = Callable[[str], BrowserContext]


@pytest.fixture(scope="module")
def new_context(browser: Browser, page_site: SharedAirflow, tokens: dict[str, str]) -> OpenSession:
    """Opens a browser session for a user of a role."""

    def opened(role: str) -> BrowserContext:
        context = browser.new_context(locale="en-GB", timezone_id="UTC", reduced_motion="reduce")
        context.set_default_timeout(PATIENCE)
        context.add_cookies([{"name": "_token", "value": tokens[role], "url": page_site.base_url}])
        return context

    return opened


@pytest.fixture(scope="module")
def contexts(new_context: OpenSession) -> OpenSession:
    """The sessions of a module, one for each role, so that Airflow's files stay cached."""
    return functools.cache(new_context)


@pytest.fixture(scope="module")
def idle() -> dict[str, Visit]:
    """A tab of each role that no test uses now. To load Airflow costs seconds of CPU, to navigate inside it little."""
    return {}


@pytest.fixture
def tab(
    contexts: OpenSession, new_context: OpenSession, idle: dict[str, Visit], page_site: SharedAirflow
) -> Iterator[OpenTab]:
    """Opens tabs by role and size, and checks each for errors after the test.

    `alone`: a new tab in a session of its own, because the tabs of a session share things such as the clock.
    """
    visits: list[tuple[str, Visit]] = []
    sessions: list[BrowserContext] = []

    def opened(
        role: str = "admin", width: int = 1440, height: int = 900, dark: bool = False, alone: bool = False
    ) -> Visit:
        if alone:
            sessions.append(new_context(role))
            visit = Visit(sessions[-1].new_page(), page_site.base_url)
        else:
            visit = idle.pop(role) if role in idle else Visit(contexts(role).new_page(), page_site.base_url)
        visit.show(width, height, dark)
        visits.append(("" if alone else role, visit))
        return visit

    yield opened
    try:
        for role, visit in visits:
            visit.check()
            if role and role not in idle:
                visit.view(conn_id="of_no_test")  # so that the next test sees no view that is older than its tasks
                idle[role] = visit
    finally:
        for _, visit in visits:
            if visit not in idle.values():
                visit.page.close()
        for session in sessions:
            session.close()


def is_api(name: str) -> Callable[[Request], bool]:
    """A filter for requests to a view of the page's API."""
    return lambda request: "/taskq/api/" in request.url and request.url.split("?")[0].endswith(f"/{name}")
