"""Fixtures of the tests in a real browser: pages open from a file, without a network."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from command_line import HANG

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_api.sync_playwright() as playwright:
        options: dict[str, Any] = {"executable_path": found} if found else {"channel": "chrome"}
        try:
            launched = playwright.chromium.launch(**options, args=["--no-sandbox"] if root else [])
        except sync_api.Error as error:
            pytest.skip(f"needs one of {', '.join(BROWSERS)}: {error.message.splitlines()[0]}")
        yield launched
        launched.close()


@dataclass
class Shown:
    """An open page, with its requests and errors."""

    tab: Any
    address: str
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def ask(self, script: str, *given: Any) -> Any:
        return self.tab.evaluate(script, *given)

    def until(self, script: str) -> None:
        """Wait until a script returns true. The security policy forbids Playwright's own way."""
        end = time.monotonic() + HANG
        while not self.ask(script):
            assert time.monotonic() < end, script
            self.tab.wait_for_timeout(20)

    def draw(self) -> None:
        """Wait for two frames, so that the page shows all that it knows."""
        self.ask("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.tab.keyboard.press(key)

    def assert_quiet(self) -> None:
        assert self.errors == []
        assert [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))] == []
        assert {url for url in self.requests if url.startswith("file:")} == {self.address}


Opener = Callable[..., Shown]


@pytest.fixture(scope="module")
def opened(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    """Opens a page as a file, without a network, and waits for an element. `script` runs before those of the page."""
    contexts = []
    folder = tmp_path_factory.mktemp("pages")

    def open_page(content: str, wait: str = ".bars", fragment: str = "", script: str = "", **options: Any) -> Shown:
        context = browser.new_context(offline=True, **{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        context.set_default_timeout(1000 * HANG)
        file = folder / f"{len(contexts)}.html"
        file.write_text(content, encoding="utf-8", newline="")
        tab = context.new_page()
        shown = Shown(tab, file.as_uri())
        tab.on("request", lambda request: shown.requests.append(request.url))
        tab.on("pageerror", lambda error: shown.errors.append(str(error)))
        tab.on("console", lambda m: shown.errors.append(m.text) if m.type == "error" else None)
        tab.add_init_script(
            "addEventListener('securitypolicyviolation', e => console.error('policy: ' + e.violatedDirective))"
        )
        tab.add_init_script(script)
        tab.goto(file.as_uri() + fragment)
        tab.wait_for_selector(wait, state="attached")
        if options.get("java_script_enabled", True):
            shown.draw()
        return shown

    yield open_page
    for context in contexts:
        context.close()
