"""The page in headless Chromium: quiet console, live charts, a phone's width, print, and a policy that holds."""

import shutil

import pytest
from explained_samples import against_one_rank
from report_samples import hostile, metrics, report, three
from study_samples import full
from study_samples import hostile as hostile_study
from test_compared_page import compared

from allpull.report import compared_page, page
from allpull.report.figures import write_figures
from allpull.report.study import page as study_page

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

pytestmark = [pytest.mark.browser, pytest.mark.slow]

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
WAIT_S = 60
LONG = "a-long-name-without-any-place-to-break-it-" * 6
PAGES = {
    "three": three,
    "hostile": hostile,
    "explained": against_one_rank,
    "slower": lambda: against_one_rank(speedup=0.08, computational=0.1),
    "doublings": lambda: report([metrics(2**power) for power in range(8)]),
    "many": lambda: report([metrics(2, name=f"{number}{LONG}", gaps=[LONG]) for number in range(20)]),
}

STUDIES = {"study": full, "hostile-study": hostile_study}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(service=webdriver.ChromeService(shutil.which("chromedriver")), options=options)
    started.set_script_timeout(WAIT_S)
    yield started
    started.quit()


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    written = {name: page.write(make(), folder / f"{name}.html") for name, make in PAGES.items()}
    studies = {name: study_page.write(make(), folder / f"{name}.html") for name, make in STUDIES.items()}
    return {**written, **studies, "compared": compared_page.write(*compared(), folder / "compared.html")}


def show(browser, path, *, width=1200):
    """Load a page at ``width`` CSS pixels, wait for its charts, and return what the console said."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(path.as_uri())
    WebDriverWait(browser, WAIT_S).until(lambda b: all(state == "live" for state in states(b)))
    return browser.get_log("browser")


CUT_OFF = """
const slack = arguments[1];
const frame = arguments[0].getBoundingClientRect(), out = [];
for (const text of arguments[0].querySelectorAll("text")) {
  const box = text.getBoundingClientRect();
  const inside = box.left >= frame.left - 1 - slack * box.width && box.top >= frame.top - 2
    && box.right <= frame.right + 1 + slack * box.width && box.bottom <= frame.bottom + 2;
  if (box.width > 0 && !inside) out.push(text.textContent);
}
return out;
"""


def states(browser):
    return browser.execute_script("return [...document.querySelectorAll('[data-spec]')].map(box => box.dataset.state)")


@pytest.mark.parametrize("width", [375, 1200])
@pytest.mark.parametrize("name", [*PAGES, *STUDIES, "compared"])
def test_charts_come_alive_in_silence_and_the_page_fits_the_screen(browser, paths, name, width):
    assert show(browser, paths[name], width=width) == []
    charts = browser.execute_script(
        "return [...document.querySelectorAll('[data-spec]')].map(box => ["
        "box.querySelectorAll('.live svg').length, box.querySelectorAll('.live svg [aria-roledescription]').length,"
        "box.querySelector('.live').getBoundingClientRect().width, box.getBoundingClientRect().width])"
    )
    assert len(charts) >= 3
    for pictures, marks, live_px, box_px in charts:
        assert pictures == 1
        assert marks > 3
        assert live_px == pytest.approx(box_px, abs=1)
    pictures = browser.find_elements(By.CSS_SELECTOR, ".live svg")
    assert [cut for picture in pictures for cut in browser.execute_script(CUT_OFF, picture, 0)] == []
    page_px, screen_px = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert page_px <= screen_px == width


def test_pointing_at_a_bar_tells_its_phase_and_time(browser, paths):
    show(browser, paths["three"])
    bar = browser.find_element(By.CSS_SELECTOR, "[data-spec=spec-phases] .live .mark-rect path")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", bar)
    ActionChains(browser).move_to_element(bar).perform()
    told = WebDriverWait(browser, WAIT_S).until(
        lambda b: b.execute_script("return document.querySelector('#vg-tooltip-element.visible')?.innerText")
    )
    assert "input" in told
    assert "4 ms" in told


TIMELINE = "[data-spec=spec-timeline]"
FIRST_BAR = f"{TIMELINE} .live .mark-rect path"


def axis(browser):
    """The labels of the time axis of the timeline, which change when it is zoomed."""
    return browser.execute_script(
        f"return [...document.querySelectorAll('{TIMELINE} .live .role-axis-label text')].map(t => t.textContent)"
    )


def wheel(browser, *, modifiers):
    """Turn the wheel over the timeline by 300 pixels; 2 is Ctrl."""
    bar = browser.find_element(By.CSS_SELECTOR, FIRST_BAR)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", bar)
    at = browser.execute_script(f"const b = document.querySelector('{TIMELINE} .live').getBoundingClientRect();"
                                "return [b.left + b.width / 2, b.top + b.height / 2]")  # fmt: skip
    before = browser.execute_script("return scrollY")
    turned = {"type": "mouseWheel", "x": at[0], "y": at[1], "deltaX": 0, "deltaY": -300, "modifiers": modifiers}
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", turned)
    return before


def test_the_wheel_over_the_timeline_scrolls_the_page_and_zooms_with_ctrl_alone(browser, paths):
    show(browser, paths["explained"])
    labels = axis(browser)
    before = wheel(browser, modifiers=0)
    WebDriverWait(browser, WAIT_S).until(lambda b: b.execute_script("return scrollY") < before - 100)
    assert axis(browser) == labels
    before = wheel(browser, modifiers=2)
    WebDriverWait(browser, WAIT_S).until(lambda b: axis(b) != labels)
    assert browser.execute_script("return scrollY") == before
    browser.execute_script("arguments[0].click()", browser.find_element(By.CSS_SELECTOR, ".reset"))
    WebDriverWait(browser, WAIT_S).until(lambda b: axis(b) == labels)


def test_pointing_at_the_timeline_names_the_rank(browser, paths):
    show(browser, paths["explained"])
    bar = browser.find_element(By.CSS_SELECTOR, FIRST_BAR)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", bar)
    ActionChains(browser).move_to_element(bar).perform()
    tooltip = WebDriverWait(browser, WAIT_S).until(
        lambda b: b.execute_script("return document.querySelector('#vg-tooltip-element.visible')?.innerText")
    )
    assert "rank" in tooltip


def test_a_command_is_copied_from_a_page_on_disk(browser, paths):
    show(browser, paths["three"])
    browser.execute_script("addEventListener('copy', () => (window.copied = String(getSelection())))")
    browser.execute_script(
        "navigator.clipboard && (navigator.clipboard.writeText = async (text) => { window.copied = text; })"
    )
    button = browser.find_element(By.CSS_SELECTOR, ".command button")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", button)
    button.click()
    WebDriverWait(browser, WAIT_S).until(lambda _: button.text == "Copied")
    assert browser.execute_script("return window.copied") == "allpull train digits -n 4"


def test_without_a_clipboard_the_command_is_copied_as_a_selection(browser, paths):
    show(browser, paths["three"])
    browser.execute_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    browser.execute_script("addEventListener('copy', () => (window.copied = String(getSelection())))")
    button = browser.find_element(By.CSS_SELECTOR, ".command button")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", button)
    button.click()
    WebDriverWait(browser, WAIT_S).until(lambda _: button.text == "Copied")
    assert browser.execute_script("return window.copied") == "allpull train digits -n 4"


def test_a_table_wider_than_a_phone_says_so_until_its_end_is_in_sight(browser, paths):
    show(browser, paths["explained"], width=420)
    wide = "return [...document.querySelectorAll('.table')].map(t => t.hasAttribute('data-more'))"
    WebDriverWait(browser, WAIT_S).until(lambda b: any(b.execute_script(wide)))
    browser.execute_script("document.querySelectorAll('.scroll').forEach(one => (one.scrollLeft = 10000))")
    WebDriverWait(browser, WAIT_S).until(lambda b: not any(b.execute_script(wide)))
    show(browser, paths["three"], width=1200)
    fits = "return [...document.querySelectorAll('.scroll')].map(s => s.scrollWidth > s.clientWidth + 2)"
    assert browser.execute_script(wide) == browser.execute_script(fits)


def test_hostile_text_ran_nothing_in_the_page_or_its_tooltips(browser, paths):
    show(browser, paths["hostile"])
    bar = browser.find_element(By.CSS_SELECTOR, "[data-spec=spec-phases] .live .mark-rect path")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", bar)
    ActionChains(browser).move_to_element(bar).perform()
    WebDriverWait(browser, WAIT_S).until(
        lambda b: (
            "</script" in (b.execute_script("return document.querySelector('#vg-tooltip-element')?.innerText") or "")
        )
    )
    scripts = browser.execute_script("return [...document.scripts].map(script => script.type)")
    assert sorted(set(scripts)) == ["application/json", "module"]
    assert scripts.count("module") == 1
    assert browser.execute_script("return document.querySelectorAll('b, #vg-tooltip-element script').length") == 0


def test_the_policy_stops_foreign_scripts_and_every_fetch(browser, paths):
    show(browser, paths["three"])
    blocked = browser.execute_async_script(
        """
        const done = arguments[0], blocked = [];
        document.addEventListener("securitypolicyviolation", (event) => {
          blocked.push(event.effectiveDirective);
          if (blocked.length === 3) done(blocked);
        });
        setTimeout(() => done(blocked), 10000);
        const script = document.createElement("script");
        script.textContent = "window.ran = true";
        document.body.append(script);
        const image = document.createElement("img");
        image.src = "http://127.0.0.1:9/x.png";
        document.body.append(image);
        fetch("http://127.0.0.1:9/").catch(() => {});
        """
    )
    assert sorted(blocked) == ["connect-src", "img-src", "script-src-elem"]
    assert browser.execute_script("return window.ran") is None
    browser.get_log("browser")  # the violations above are meant; leave a clean console behind


def test_turning_the_phone_draws_the_charts_anew_for_the_new_width(browser, paths):
    show(browser, paths["doublings"], width=375)
    size = {"width": 812, "height": 375, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wide = "return [...document.querySelectorAll('.live svg')].map(picture => picture.getBoundingClientRect().width)"
    WebDriverWait(browser, WAIT_S).until(lambda b: min(b.execute_script(wide), default=0) > 600)
    assert len(browser.find_elements(By.CSS_SELECTOR, ".live svg")) == 5
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("name", ["three", "hostile", "doublings", *STUDIES])
def test_no_letter_of_a_figure_is_cut_off(browser, tmp_path, name):
    write = study_page.write_figures if name in STUDIES else write_figures
    for path in write({**PAGES, **STUDIES}[name](), tmp_path):
        if path.suffix == ".svg":
            browser.get(path.as_uri())
            picture = browser.find_element(By.CSS_SELECTOR, "svg")
            # The figure was measured in Arial or its twin; where this machine has neither, letters are wider.
            assert browser.execute_script(CUT_OFF, picture, 0.15) == [], path.name


def test_print_shows_the_still_pictures_uncut(browser, paths):
    show(browser, paths["three"])
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        shown = browser.execute_script(
            "const css = (box, part) => getComputedStyle(box.querySelector(part)).display;"
            "return [...document.querySelectorAll('[data-spec]')].map(box => [css(box, '.live'), css(box, '.still'),"
            "getComputedStyle(box.closest('figure')).breakInside])"
        )
        assert shown == [["none", "block", "avoid"]] * 5
        assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_without_javascript_the_page_still_shows_its_charts(browser, paths):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(paths["three"].as_uri())
        stills = browser.find_elements(By.CSS_SELECTOR, ".still svg")
        assert len(stills) == 5
        assert all(picture.size["height"] > 100 for picture in stills)
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
