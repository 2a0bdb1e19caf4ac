"""The page of `patchctl report` in a real Chromium, without a window: what a reader does with it, at two widths, in the dark, on
paper, and that it asks nobody for anything. One browser for all of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from distribution import REPO, Made, run_patchctl
from report_pages import ODD, drifted, make_odd
from selenium import webdriver
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="no chromium, or no chromedriver")
Browser = webdriver.Chrome
WIDE, PHONE = (1440, 900), (360, 740)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    yield started
    started.quit()


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a distribution that wants to do more than be read."""
    folder = tmp_path_factory.mktemp("odd")
    made: Made = make_odd(folder)
    made.good("report", "--drift", str(drifted(made, folder)), "--out", str(folder / "page.html"))
    return folder / "page.html"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the distribution that this repository has."""
    folder = tmp_path_factory.mktemp("ours")
    done = run_patchctl(f"--root={REPO}", "report", "--out", str(folder / "page.html"), home=folder / "home")
    assert done.returncode == 0, done.stderr
    return folder / "page.html"


@pytest.fixture
def opened(browser: Browser) -> Iterator[Callable[..., Browser]]:
    """Opens a page anew, at a width and in colours; after the test the console has to be empty, and nothing have been asked for."""

    def show(page: Path, fragment: str = "", size: tuple[int, int] = WIDE, colours: str = "light") -> Browser:
        features = [{"name": "prefers-color-scheme", "value": colours}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        browser.get("about:blank")
        browser.get(page.as_uri() + fragment)
        return browser

    yield show
    assert browser.get_log("browser") == []
    events = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    asked = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    assert all(url.startswith("file:///") and url.endswith("/page.html") for url in asked), asked


def script(browser: Browser, code: str, *given: Any) -> Any:
    return browser.execute_script(f"return {code}", *given)  # type: ignore[no-untyped-call]


def find(browser: Browser, selector: str) -> WebElement:
    return browser.find_element("css selector", selector)


def shown(browser: Browser, selector: str) -> list[str]:
    """The text of what is to be seen of it."""
    return [e.text for e in browser.find_elements("css selector", selector) if e.is_displayed()]


def features(browser: Browser) -> list[str]:
    return shown(browser, ".feature h3")


def press(browser: Browser, *keys: str) -> None:
    webdriver.ActionChains(browser).send_keys(*keys).perform()


def choose(browser: Browser, name: str, value: str) -> None:
    find(browser, f"#{name} option[value='{value}']").click()


Opened = Callable[..., Browser]


def test_the_filter_finds_by_feature_file_upstream_and_proof(opened: Opened, odd: Path) -> None:
    browser = opened(odd)
    assert features(browser) == ["loud", "odd", "polite", "step", "typo"]
    words = find(browser, "#words")
    words.send_keys("POLITE form")
    assert features(browser) == ["polite"] and shown(browser, "#found") == ["1 of 5 patches"]
    assert shown(browser, ".patches tbody th") == ["polite"]
    assert shown(browser, ".paths tbody th") == ["greeter/hello.py", "greeter/manners.py"]
    words.clear()
    words.send_keys("clock/tick.py")
    assert features(browser) == ["step"] and shown(browser, ".paths tbody th") == ["clock/tick.py"]
    words.clear()
    words.send_keys("full/loud")  # a recipe by its name
    assert shown(browser, ".runs tbody th") == ["full/loud"]
    find(browser, "#clear").click()
    choose(browser, "upstream", "clock")
    assert features(browser) == ["step"] and len(shown(browser, ".stack")) == 1
    assert shown(browser, ".needs tbody th") == ["step"]
    choose(browser, "proof", "proven")
    assert features(browser) == [] and "nothing has all of this" in shown(browser, "#found")[0]
    find(browser, "#clear").click()
    assert len(features(browser)) == 5 and shown(browser, "#part-profiles")


def test_by_the_keyboard_alone(opened: Opened, odd: Path) -> None:
    browser = opened(odd)
    press(browser, Keys.TAB)
    skip = browser.switch_to.active_element
    assert skip.text == "To the content" and skip.location["x"] >= 0
    press(browser, Keys.ENTER)
    assert browser.switch_to.active_element.tag_name == "main"
    press(browser, "/")
    assert browser.switch_to.active_element.get_attribute("id") == "words"
    press(browser, "the size")
    assert features(browser) == ["step"] and find(browser, "#words").get_attribute("value") == "the size"
    press(browser, Keys.ESCAPE)
    assert len(features(browser)) == 5
    script(browser, "document.querySelector('#polite summary').focus()")
    press(browser, Keys.ENTER)
    assert find(browser, "#polite").get_attribute("open") and "people ask for polite" in find(browser, "#polite").text
    press(browser, Keys.SPACE)
    assert not find(browser, "#polite").get_attribute("open")
    script(browser, "document.querySelector('.needs a[href=\"#loud\"]').focus()")
    press(browser, Keys.ENTER)
    assert find(browser, "#loud").get_attribute("open")
    assert browser.switch_to.active_element.tag_name == "summary"
    lost = script(browser, "[...document.querySelectorAll('.scroll')].filter(box => box.tabIndex !== 0).length")
    assert lost == 0  # what scrolls can be scrolled by keys


@pytest.mark.parametrize("fragment", ["#polite", "#polite@greeter"])
def test_a_link_to_a_feature_opens_it(opened: Opened, odd: Path, fragment: str) -> None:
    browser = opened(odd, fragment)
    card = find(browser, "#polite")
    assert card.get_attribute("open") and "people ask for polite" in card.text
    top = script(browser, "arguments[0].getBoundingClientRect().top", card)
    assert 0 <= top < WIDE[1] / 2
    find(browser, "#words").send_keys("step")
    assert not card.is_displayed()
    script(browser, "void (location.hash = '#typo')")
    typo = WebDriverWait(browser, 5).until(lambda b: b.find_element("id", "typo"))
    assert typo.get_attribute("open") and typo.is_displayed()  # the filter that hid it is gone


@pytest.mark.parametrize("which", ["odd", "ours"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_no_width_scrolls_the_page_sideways(
    opened: Opened, which: str, size: tuple[int, int], request: pytest.FixtureRequest
) -> None:
    browser = opened(request.getfixturevalue(which), size=size)
    script(browser, "document.querySelectorAll('details').forEach(box => box.open = true)")
    cut = """[...document.querySelectorAll('main *, header *')].filter(e => !e.closest('.scroll, .heard, caption, thead, kbd'))
             .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 90))"""
    assert script(browser, cut) == []
    wide = script(browser, "[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1], wide


def test_the_menu_takes_no_width_and_a_commit_s_address_no_five_lines(opened: Opened, ours: Path) -> None:
    browser = opened(ours)
    width = script(browser, "document.querySelector('main').getBoundingClientRect().width")
    assert width > 0.9 * WIDE[0]
    tall = """[...document.querySelectorAll('.patches td:last-child, .runs li')].filter(e => /https?:/.test(e.textContent))
              .map(e => { const range = document.createRange(), text = e.firstChild, at = text.data.indexOf('http');
                const end = text.data.slice(at).search(/\\s|$/) + at; range.setStart(text, at); range.setEnd(text, end);
                return new Set([...range.getClientRects()].map(box => box.top)).size; }).filter(lines => lines > 2)"""
    assert script(browser, tall) == []


CONTRAST = """(() => {
  const value = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return n.length > 3 && n[3] === 0 ? null : n.slice(0, 3); };
  const light = (rgb) => rgb.map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, n) => sum + v * [.2126, .7152, .0722][n], 0);
  const behind = (e) => e ? value(getComputedStyle(e).backgroundColor) || behind(e.parentElement) : [255, 255, 255];
  const low = [];
  for (const e of document.querySelectorAll('body *')) {
    if (!e.checkVisibility() || e.closest('script, style, option') || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    const [a, b] = [light(value(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    if ((a + .05) / (b + .05) < 4.5) low.push(e.className + ': ' + e.textContent.slice(0, 40));
  }
  return [...new Set(low)];
})()"""


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_what_is_written_can_be_read_in_both_schemes(opened: Opened, odd: Path, colours: str) -> None:
    """WCAG 2's contrast of 4.5 between each text and what is behind it."""
    browser = opened(odd, colours=colours)
    paper = script(browser, "getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (colours == "light")
    assert script(browser, CONTRAST) == []


def test_on_paper_all_is_open_and_nothing_is_to_be_pressed(opened: Opened, odd: Path) -> None:
    browser = opened(odd, colours="dark")
    script(
        browser,
        "void addEventListener('beforeprint', () => { closed = document.querySelectorAll('details:not([open])').length; })",
    )
    printed = browser.execute_cdp_cmd("Page.printToPDF", {})
    assert len(printed["data"]) > 10_000
    assert script(browser, "closed") == 0
    assert script(browser, "document.querySelectorAll('details[open]').length") == 0  # and closed again afterwards
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert script(browser, "getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    kept = "getComputedStyle(document.querySelector('.patch > .facts')).breakInside"
    assert (
        script(browser, kept) == "auto"
    )  # a block of fifteen lines that has to stay whole leaves a third of a page empty
    assert not shown(browser, "nav") and not shown(browser, "#filter") and shown(browser, "main h2")


def test_what_others_wrote_stays_text(opened: Opened, odd: Path) -> None:
    browser = opened(odd, "#odd")
    assert browser.title == "all profiles · patchctl report"
    assert find(browser, "#odd .what").text == ODD.replace("\u202e", "\\u202e")
    assert script(
        browser,
        "[document.images.length, document.scripts.length, document.querySelectorAll('[onclick], [onload], b').length]",
    ) == [0, 2, 0]
    assert script(
        browser,
        "new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size === document.querySelectorAll('[id]').length",
    )
    # Even where a script were put into it: the policy runs none but ours.
    script(
        browser,
        "void document.body.append(Object.assign(document.createElement('script'), {textContent: 'document.title = \"owned\"'}))",
    )
    assert browser.title == "all profiles · patchctl report"
    (refused,) = browser.get_log("browser")
    assert "Content Security Policy" in refused["message"]
