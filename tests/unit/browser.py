"""A real headless Chromium for the tests that need one; they skip where there is none."""

import contextlib
import shutil

import pytest


@contextlib.contextmanager
def chromium(folder):
    """A selenium driver; folder: the browser's profile."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium here (pip install 'zipage-sglang[browser]')")
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no browser here (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1200,900",
                     f"--user-data-dir={folder}", "--host-resolver-rules=MAP * ~NOTFOUND"):  # and no network
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield browser
    finally:
        browser.quit()
