"""A real browser for the tests of the report; started once."""

from __future__ import annotations

import os
import shutil

import pytest

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-quic --disable-dev-shm-usage"
)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    selenium = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    chromium = next(
        filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None
    )
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("Chromium or its driver is not installed")
    options = selenium.ChromeOptions()
    options.binary_location = chromium
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # Selenium's own driver manager would go to the network; this keeps it from trying.
    os.environ["SE_OFFLINE"] = "true"
    started = selenium.Chrome(options=options, service=Service(executable_path=driver))
    yield started
    started.quit()


@pytest.fixture
def visit(browser, pages):
    """Return a function that opens one of the module's pages at a width and theme.

    The logs are empty and nothing is remembered.
    """

    def go(name, width=1280, theme="light", media=""):
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        features = [{"name": "prefers-color-scheme", "value": theme}]
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"media": media, "features": features}
        )
        browser.get("about:blank")
        browser.get_log("browser")
        browser.get_log("performance")
        browser.get(pages[name])
        browser.execute_script(
            "localStorage.clear(); delete document.documentElement.dataset.theme"
        )
        return browser

    return go
