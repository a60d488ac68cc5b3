"""The site that `make docs` built, opened in headless Chromium: it works without any other host."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

pytestmark = pytest.mark.site

SITE = Path(__file__).parents[2] / "site"

# As root Chromium has no sandbox; it would also look for updates, and nothing answers here.
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
]

PHONE = 390
"""Pixels. A page that is wider is zoomed out there, so it is compared with this number."""

SEEN = """
const images = [...document.images].filter(image => !image.complete || !image.naturalWidth);
const asked = performance.getEntriesByType("resource").map(entry => entry.name);
return {
  "wider than the screen by": document.documentElement.scrollWidth - arguments[0],
  "broken pictures": images.map(image => image.src),
  "from other hosts": asked.filter(name => !name.startsWith(location.origin)),
};
"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The site, served on this machine."""
    if not (SITE / "index.html").exists():
        pytest.skip("there is no site: `make docs` builds it")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    """Chromium from the system's packages, which resolves no name."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("Chromium is not installed: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        resolve = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
        for flag in (*FLAGS, resolve, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        chromium = webdriver.Chrome(options=options, service=Service(driver))
        yield chromium
        chromium.quit()


def screen(browser: webdriver.Chrome, width: int, height: int) -> None:
    """Give the browser a screen; that of a phone obeys the page's own viewport rule."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def test_every_page_fits_a_phone_and_is_whole(browser: webdriver.Chrome, address: str) -> None:
    screen(browser, PHONE, 844)
    pages = [page.relative_to(SITE).as_posix() for page in sorted(SITE.rglob("*.html"))]
    wrong = {}
    for page in pages:
        browser.get(address + page.removesuffix("index.html"))
        seen = browser.execute_script(SEEN, PHONE)
        seen["console"] = [entry["message"] for entry in browser.get_log("browser")]
        found = {what: value for what, value in seen.items() if value}
        if found:
            wrong[page] = found
    assert len(pages) > 40 and wrong == {}


def test_the_start_page_shows_its_pictures(browser: webdriver.Chrome, address: str) -> None:
    browser.get(address)
    (picture,) = browser.find_elements(By.CSS_SELECTOR, "article img")
    assert picture.size["width"] > 300 and picture.size["height"] > 100


@pytest.mark.parametrize("width", [PHONE, 1300])
def test_search_finds_a_word(browser: webdriver.Chrome, address: str, width: int) -> None:
    screen(browser, width, 900)
    browser.get(address)
    if width == PHONE:
        browser.find_element(By.CSS_SELECTOR, "label.md-header__button[for=__search]").click()
    field = browser.find_element(By.CSS_SELECTOR, "input.md-search__input")
    WebDriverWait(browser, 10).until(lambda _: field.is_displayed())
    field.send_keys("tolerance")
    results = ".md-search-result__item a"
    WebDriverWait(browser, 20).until(lambda _: browser.find_elements(By.CSS_SELECTOR, results))
    first = browser.find_elements(By.CSS_SELECTOR, results)[0]
    browser.get(str(first.get_attribute("href")))
    assert "/api/" not in browser.current_url, "words are explained before they are listed"
    assert "tolerance" in browser.find_element(By.TAG_NAME, "article").text.lower()
    assert browser.get_log("browser") == []


def test_a_phone_has_the_menu(browser: webdriver.Chrome, address: str) -> None:
    screen(browser, PHONE, 844)
    browser.get(address)
    browser.find_element(By.CSS_SELECTOR, "label.md-header__button[for=__drawer]").click()
    menu = browser.find_element(By.CSS_SELECTOR, ".md-nav--primary > .md-nav__list")
    WebDriverWait(browser, 10).until(lambda _: menu.text)
    assert "Guides" in menu.text.splitlines()
