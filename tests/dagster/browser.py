"""Headless Chromium, as a person's hands and eyes on the Dagster UI."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    JavascriptException,
    StaleElementReferenceException,
)
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

PATIENCE = 120.0
# A press that has led nowhere for so long was not taken.
SWALLOWED = 25.0
# Nothing but the page: no lookups of Chromium's own, which a closed network refuses many at a time.
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1500,1200",
)
# The page draws itself anew while it loads; what was found a moment ago may be gone, or covered.
NOT_YET = (
    StaleElementReferenceException,
    ElementClickInterceptedException,
    ElementNotInteractableException,
    JavascriptException,
)


class Browser:
    """One window at a time; everything waits until the page is ready for it."""

    def __init__(self, driver: Any, base: str, pictures: Path) -> None:
        self._driver = driver
        self._base = base
        self._pictures = pictures

    @property
    def address(self) -> str:
        return self._driver.current_url

    def open(self, path: str) -> None:
        self._driver.get(path if path.startswith("http") else self._base + path)

    def arrives(self, part: str) -> None:
        """Wait until the address has a part."""
        self._wait(lambda: part in self.address, lambda: f"still at {self.address}: {self.text()[-3000:]}")

    def leaves(self, address: str) -> None:
        """Wait until the page is another one."""
        self._wait(lambda: self.address != address, lambda: f"still at {self.address}: {self.text()[-3000:]}")

    def says(self, words: str) -> None:
        """Wait until the page says something; fail with what it says instead."""
        self._wait(lambda: words in self.text(), lambda: f"the page never said {words!r}, but: {self.text()[-3000:]}")

    def text(self) -> str:
        return self._driver.find_element(By.TAG_NAME, "body").text

    def click(self, xpath: str) -> None:
        self._wait(lambda: self._click(xpath), lambda: f"nothing to click at {xpath} on: {self.text()[-3000:]}")

    def press(self, label: str) -> None:
        """Press the button with this label."""
        self.click(f"//button[not(@disabled)][contains(normalize-space(.), '{label}')]")

    def launch(self) -> None:
        """Press "Launch Run" and go to the run's page; the Launchpad forgets a press while it checks the config."""
        pressed = [-SWALLOWED]

        def is_there() -> bool:
            there = "/runs/" in self.address
            if not there and monotonic() - pressed[0] > SWALLOWED:
                self._click("//button[not(@disabled)][contains(normalize-space(.), 'Launch Run')]")
                pressed[0] = monotonic()
            return there

        self.says("No errors")
        self._wait(is_there, lambda: f"nothing was launched: {self.text()[-3000:]}")

    def fill(self, placeholder: str, text: str) -> None:
        """Type into the input whose placeholder starts so."""
        xpath = f"//input[starts-with(@placeholder, '{placeholder}')]"
        self.click(xpath)
        self._wait(lambda: self._type(xpath, text), lambda: f"no input {placeholder!r}")

    def enter(self) -> None:
        self._driver.switch_to.active_element.send_keys(Keys.ENTER)

    def follow(self, label: str) -> None:
        """Click a link by its label."""
        self.click(f"//a[normalize-space(.)='{label}']")

    def open_link(self, part: str) -> None:
        """Open the address of a link that has a part; the page itself would open another window."""
        xpath = f"//a[contains(@href, '{part}')]"
        self._wait(lambda: self._find(xpath), lambda: f"no link to {part!r} on: {self.text()[-3000:]}")
        self.open(str(self._driver.find_element(By.XPATH, xpath).get_attribute("href")))

    def config(self) -> str:
        """Return what stands in the Launchpad's editor."""
        script = "return document.querySelector('.CodeMirror').CodeMirror.getValue()"
        return str(self._wait(lambda: self._driver.execute_script(script), lambda: "there is no editor"))

    def type_into_config(self, before: str, typed: str) -> None:
        """Put the cursor behind `before` in the Launchpad's editor, and type."""
        place = """
        const editor = document.querySelector('.CodeMirror').CodeMirror;
        const at = editor.getValue().indexOf(arguments[0]) + arguments[0].length;
        editor.focus(); editor.setCursor(editor.posFromIndex(at));
        """
        assert before in self.config()
        self._driver.execute_script(place, before)
        self._driver.switch_to.active_element.send_keys(typed)

    def picture(self, name: str) -> None:
        """Take a picture of the page, for a person to look at."""
        self._pictures.mkdir(exist_ok=True)
        self._driver.save_screenshot(str(self._pictures / f"{name}.png"))

    def _click(self, xpath: str) -> bool:
        found = self._find(xpath)
        if found is None:
            return False
        self._driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", found)
        found.click()
        return True

    def _type(self, xpath: str, text: str) -> bool:
        found = self._find(xpath)
        if found is None:
            return False
        found.send_keys(Keys.CONTROL, "a")
        found.send_keys(text)
        return True

    def _find(self, xpath: str) -> WebElement | None:
        return next((each for each in self._driver.find_elements(By.XPATH, xpath) if each.is_displayed()), None)

    def _wait(self, condition: Callable[[], object], otherwise: Callable[[], str]) -> object:
        deadline = WebDriverWait(self._driver, PATIENCE, ignored_exceptions=NOT_YET)
        try:
            return deadline.until(lambda _: condition())
        except Exception as error:
            self.picture("failed")
            raise AssertionError(otherwise()) from error


@contextmanager
def open_browser(base: str, profile: Path, pictures: Path) -> Iterator[Browser]:
    """Start Chromium with an empty profile; it ends with the block."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.fail("Chromium and its driver are needed here: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield Browser(started, base, pictures)
    finally:
        started.quit()
