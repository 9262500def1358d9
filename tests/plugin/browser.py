"""Debian's Chromium, or any Chrome on the PATH, driven by Playwright, which downloads nothing."""

import functools
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, BrowserContext, Dialog, Locator, Page, Request, expect, sync_playwright

from tests.plugin.page_site import PageSite

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
QUIET = ("gpu", "background-networking", "component-update", "sync")
PATIENCE = 90_000  # milliseconds: a bound for a loaded machine, and more than the AT_MOST of polling.js
# Tells of everything that a page tried to do and may not, and of what hostile text would have done.
WATCH = """
window.refused = [];
document.addEventListener("securitypolicyviolation", (event) =>
    window.refused.push(`${event.violatedDirective} ${event.blockedURI}`));
"""
# To another address inside Airflow, as a link there would.
MOVE = "(url) => { history.pushState(null, '', url); dispatchEvent(new PopStateEvent('popstate')); }"

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser's program; the tests that need one are left out where there is none, save in CI."""
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
    """A user's tab, which notes what it asks and whatever goes wrong in it."""

    def __init__(self, page: Page, base_url: str) -> None:
        self.page = page
        self.asked: list[Request] = []
        self.faults: list[str] = []
        self._base_url = base_url
        page.on("request", lambda request: self.asked.append(request))
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("dialog", self._dialog)
        page.add_init_script(WATCH)

    def _dialog(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def go(self, path: str, **query: str | int | None) -> Page:
        """Opens a path below Airflow's base: inside Airflow, where the tab shows it already."""
        asked = {name: value for name, value in query.items() if value is not None}
        url = f"{self._base_url}/{path}" + (f"?{urlencode(asked)}" if asked else "")
        if self.page.url.startswith(f"{self._base_url}/plugin/taskq") and path == "plugin/taskq":
            self.page.evaluate(MOVE, url)
        else:
            self.page.goto(url)
        return self.page

    def view(self, view: str | None = None, conn_id: str = "taskq_default", **query: str | int | None) -> Locator:
        """Opens a view of the page, and returns the page's main part."""
        return self.go("plugin/taskq", view=view, conn_id=conn_id, **query).get_by_test_id("taskq")

    def check(self) -> None:
        """Nothing was refused, broke, or ran that came in as data."""
        told: dict[str, Any] = self.page.evaluate("({refused: window.refused ?? [], hacked: window.hacked ?? null})")
        assert told == {"refused": [], "hacked": None}
        assert self.faults == []


OpenTab = Callable[..., Visit]


OpenSession = Callable[[str], BrowserContext]


@pytest.fixture(scope="module")
def new_context(browser: Browser, page_site: PageSite, tokens: dict[str, str]) -> OpenSession:
    """Opens a session of the browser for a role's user."""

    def opened(role: str) -> BrowserContext:
        context = browser.new_context(locale="en-GB", timezone_id="UTC", reduced_motion="reduce")
        context.set_default_timeout(PATIENCE)
        context.add_cookies([{"name": "_token", "value": tokens[role], "url": page_site.base_url}])
        return context

    return opened


@pytest.fixture(scope="module")
def contexts(new_context: OpenSession) -> OpenSession:
    """The sessions that a module keeps, one for each role: what Airflow's page loads stays cached."""
    return functools.cache(new_context)


@pytest.fixture
def tab(contexts: OpenSession, new_context: OpenSession, page_site: PageSite) -> Iterator[OpenTab]:
    """Opens tabs, by role and size; each is looked at for faults when the test is over.

    `alone`: in a session of its own, for what all tabs of one have in common, such as the clock.
    """
    visits: list[Visit] = []
    sessions: list[BrowserContext] = []

    def opened(
        role: str = "admin", width: int = 1440, height: int = 900, dark: bool = False, alone: bool = False
    ) -> Visit:
        context = new_context(role) if alone else contexts(role)
        if alone:
            sessions.append(context)
        page = context.new_page()
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme="dark" if dark else "light")
        visits.append(Visit(page, page_site.base_url))
        return visits[-1]

    yield opened
    try:
        for visit in visits:
            visit.check()
    finally:
        for visit in visits:
            visit.page.close()
        for session in sessions:
            session.close()


def sentence(main: Locator) -> str:
    """Why the task that is shown is not running."""
    return main.get_by_test_id("why").inner_text()


def is_api(name: str) -> Callable[[Request], bool]:
    """Whether a request asks the page's API for something."""
    return lambda request: "/taskq/api/" in request.url and request.url.split("?")[0].endswith(f"/{name}")
