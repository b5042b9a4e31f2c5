"""The page in a real browser: nothing fetched or complained of, every figure drawn, no overflow, both schemes."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_documents import HOSTILE, spoiled

from pytest_moetier.documents import document_of
from pytest_moetier.page.write import write_page

_CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(not _CHROMIUM or not _DRIVER, reason="no browser: apt-get install chromium chromium-driver"),
    pytest.mark.skipif(
        importlib.util.find_spec("selenium") is None, reason="selenium is missing: pip install selenium"
    ),
]
DESKTOP, PHONE = (1280, 900), (400, 850)
CONTRAST = 4.5
"""Of text against its ground, at least (WCAG 2, level AA)."""
_OVERFLOW = """
return [...document.querySelectorAll('body *')].filter(one => {
  const box = one.getBoundingClientRect();
  return box.width && (box.right > innerWidth + 1 || box.left < -1) && !one.closest('.box, .drawing');
}).map(one => one.outerHTML.slice(0, 120));
"""
_COLOURS = """
const seen = [];
for (const one of document.querySelectorAll('p, li, a, td, th, summary, .badge, .soft, .id, .seen, h1, h2, h3, code')) {
  if (!one.checkVisibility() || !one.textContent.trim()) continue;
  let ground = one;
  while (getComputedStyle(ground).backgroundColor === 'rgba(0, 0, 0, 0)') ground = ground.parentElement;
  seen.push(getComputedStyle(one).color + '|' + getComputedStyle(ground).backgroundColor + '|' + one.className);
}
return [...new Set(seen)];
"""
_DRAWN = """
return [...document.querySelectorAll('figure svg')].map(svg => {
  const box = svg.getBoundingClientRect();
  const shapes = [...svg.querySelectorAll('path, use, text')].filter(one => {
    const inner = one.getBoundingClientRect();
    return inner.width + inner.height > 0;
  });
  const words = [...svg.querySelectorAll('text')];
  return {
    name: svg.closest('figure').id, width: box.width, height: box.height, shapes: shapes.length, words: words.length,
    title: document.getElementById(svg.getAttribute('aria-labelledby').split(' ')[0]).textContent,
    alt: document.getElementById(svg.getAttribute('aria-labelledby').split(' ')[1]).textContent,
    ink: words.length ? getComputedStyle(words[0]).fill : '',
  };
});
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser without a window."""
    from selenium.common.exceptions import WebDriverException  # noqa: PLC0415
    from selenium.webdriver import Chrome, ChromeOptions  # noqa: PLC0415
    from selenium.webdriver.chrome.service import Service  # noqa: PLC0415

    options = ChromeOptions()
    options.binary_location = str(_CHROMIUM)
    words = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions"]
    if os.geteuid() == 0:
        words.append("--no-sandbox")  # chromium has none for root
    for word in words:
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    try:
        driver = Chrome(options=options, service=Service(_DRIVER))
    except WebDriverException as error:
        pytest.skip(f"the browser does not start here: {error.msg}")
    yield driver
    driver.quit()


def load(browser: Any, path: Path, size: tuple[int, int] = DESKTOP, scheme: str = "light") -> Any:
    """Load a page of that width in that colour scheme."""
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(path.as_uri())
    return browser


def luminance(colour: str) -> float:
    """Return the relative luminance of ``rgb(r, g, b)``, as WCAG 2 defines it."""
    parts = [float(one) / 255 for one in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (one / 12.92 if one <= 0.03928 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_nothing_is_fetched_and_nothing_complained_of(browser: Any, report: Path) -> None:
    page = load(browser, report / "index.html")
    assert page.get_log("browser") == []
    requests = [one["message"] for one in page.get_log("performance") if 'Network.requestWillBeSent"' in one["message"]]
    assert len([one for one in requests if "file://" in one]) == 1
    assert [one for one in requests if "http://" in one.replace("http://www.w3.org", "") or "https://" in one] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_figure_is_drawn_and_told_in_words(
    browser: Any, report: Path, size: tuple[int, int], scheme: str
) -> None:
    found = load(browser, report / "index.html", size, scheme).execute_script(_DRAWN)
    assert len(found) == 10
    for one in found:
        assert min(one["width"], one["height"]) > 100, one
        assert one["shapes"] > 20, one
        assert one["words"] > 5, one
        assert "synthetic" in one["title"]
        assert len(one["alt"]) > len(one["title"])
    ground = browser.execute_script("return getComputedStyle(document.querySelector('figure')).backgroundColor")
    assert {round(contrast(one["ink"], ground)) >= 7 for one in found} == {True}


@pytest.mark.parametrize("opened", [False, True], ids=["closed", "opened"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nothing_is_wider_than_the_screen(browser: Any, report: Path, size: tuple[int, int], opened: bool) -> None:  # noqa: FBT001
    page = load(browser, report / "index.html", size)
    if opened:
        page.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.execute_script("return document.documentElement.scrollWidth") <= size[0]
    assert page.execute_script(_OVERFLOW) == []


def test_markup_in_a_name_is_shown_and_not_run(browser: Any, tmp_path: Path) -> None:
    write_page([document_of(spoiled(), "")], tmp_path)
    page = load(browser, tmp_path / "index.html", PHONE)
    assert page.title == "What holds on this machine? pytest-moetier"
    assert page.execute_script("return document.scripts.length") == 0
    text = page.execute_script("return document.body.textContent")
    assert text.count(HOSTILE) > 10
    figure = page.execute_script(
        "return document.querySelector('figure svg text').parentNode.closest('svg').textContent"
    )
    assert HOSTILE in figure
    assert page.execute_script("return document.documentElement.scrollWidth") <= PHONE[0]
    assert page.get_log("browser") == []


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_first_screen_says_what_holds(browser: Any, report: Path, size: tuple[int, int]) -> None:
    page = load(browser, report / "index.html", size)
    found = page.execute_script(
        "return [...document.querySelectorAll('#counts li')].map(one => [one.dataset.verdict, one.dataset.count,"
        " one.textContent, one.getBoundingClientRect().bottom])"
    )
    assert [one[0] for one in found] == ["supported", "refuted", "not_examined", "invalid"]
    assert all(count in text and bottom < size[1] for _, count, text, bottom in found)
    first = page.execute_script(
        "return [...document.querySelectorAll('h1, .top, .card li')]"
        ".filter(one => one.getBoundingClientRect().bottom < innerHeight).map(one => one.textContent).join(' ')"
    )
    for words in ("What holds on this machine?", "2026-11-30", "AMD EPYC", "synthetic traces", "6.12.118"):
        assert words in first, first
    assert page.execute_script("return document.querySelectorAll('.card li').length") >= 12


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_colour_schemes(browser: Any, report: Path, scheme: str) -> None:
    pairs = [one.split("|") for one in load(browser, report / "index.html", DESKTOP, scheme).execute_script(_COLOURS)]
    assert len(pairs) > 10
    assert [(name, ink, ground) for ink, ground, name in pairs if contrast(ink, ground) < CONTRAST] == []
    dark = luminance(browser.execute_script("return getComputedStyle(document.body).backgroundColor")) < 0.1
    assert dark is (scheme == "dark")


def test_the_choice_of_what_is_listed_works_without_a_script(browser: Any, report: Path) -> None:
    page = load(browser, report / "index.html")
    rows = "[...document.querySelectorAll('tr.claim')]"
    shown = f"return {rows}.filter(one => one.checkVisibility()).map(one => one.className)"
    everything = page.execute_script(shown)
    page.execute_script("document.getElementById('only-examined').click()")
    assert page.execute_script(shown) == [one for one in everything if "not_examined" not in one]
    page.execute_script("document.getElementById('only-refuted').click()")
    assert set(page.execute_script(shown)) == {"claim refuted"}


def test_on_paper_all_is_opened_and_nothing_is_cut(browser: Any, report: Path) -> None:
    page = load(browser, report / "index.html")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    hidden = "return [...document.querySelectorAll('td, dd')].filter(one => !one.checkVisibility()).length"
    assert page.execute_script(hidden) == 0
    assert page.execute_script("return getComputedStyle(document.querySelector('nav')).display") == "none"
    paper = page.print_page()
    assert len(paper) > 50_000
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
