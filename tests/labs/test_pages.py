"""The pages of the labs in a real browser: no error, no request, a slider that keys move, and the computed values."""

import shutil

import pytest

from allpull.labs import ring_page, sgd_page
from allpull.labs.ring import RingLab, run_ring
from allpull.labs.sgd import SgdLab, run_sgd
from allpull.report.page import render_page

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

pytestmark = [pytest.mark.browser, pytest.mark.slow]

WAIT_S = 60
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync"
)


def started(folder, *more):
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (*FLAGS.split(), f"--user-data-dir={folder}", *more):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(service=webdriver.ChromeService(shutil.which("chromedriver")), options=options)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    one = started(tmp_path_factory.mktemp("profile"))
    yield one
    one.quit()


@pytest.fixture(scope="module")
def results():
    return {"sgd": run_sgd(SgdLab(batch=1000, epochs=40)), "ring": run_ring(RingLab(ranks=4, size_bytes=65536))}


@pytest.fixture(scope="module")
def pages(results, tmp_path_factory):
    folder = tmp_path_factory.mktemp("labs")
    made = {"sgd": sgd_page.page(results["sgd"]), "ring": ring_page.page(results["ring"])}
    for name, page in made.items():
        (folder / f"{name}.html").write_text(render_page(page), "utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in made}


def opened(browser, address, width=1200):
    browser.set_window_size(width, 900)
    browser.get(address)
    drawn = "return [...document.querySelectorAll('.box')].every((box) => box.dataset.state === 'live')"
    WebDriverWait(browser, WAIT_S).until(lambda one: one.execute_script(drawn))
    return browser.find_element(By.CSS_SELECTOR, ".slider input"), browser.find_element(
        By.CSS_SELECTOR, ".slider output"
    )


@pytest.mark.parametrize("name", ["sgd", "ring"])
@pytest.mark.parametrize("width", [1200, 420])
def test_a_page_is_quiet_and_fits(browser, pages, name, width):
    opened(browser, pages[name], width)
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    requests = "return performance.getEntriesByType('resource').map((one) => one.name)"
    assert [one for one in browser.execute_script(requests) if not one.startswith("data:")] == []
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")


def test_keys_move_the_path_to_the_computed_values(browser, pages, results):
    slider, output = opened(browser, pages["sgd"])
    slider.send_keys(Keys.HOME)
    first = results["sgd"].path[0]
    assert output.text == f"update 0: slope {first.slope:.3f}, offset {first.offset:.3f}, loss {first.loss:.4f}"
    slider.send_keys(Keys.ARROW_RIGHT)
    second = results["sgd"].path[1]
    assert output.text == f"update 1: slope {second.slope:.3f}, offset {second.offset:.3f}, loss {second.loss:.4f}"
    assert slider.get_attribute("aria-valuetext") == output.text
    view = "return document.querySelector('[data-spec=spec-map]').view.signal('moment')"
    assert browser.execute_script(view) == 1


def test_the_ring_shows_what_each_rank_holds(browser, pages, results):
    slider, _ = opened(browser, pages["ring"])
    slider.send_keys(Keys.HOME)
    marks = "[data-spec=spec-chunks] .live .mark-text.role-mark text"
    texts = f"return [...document.querySelectorAll('{marks}')].map((one) => one.textContent)"
    WebDriverWait(browser, WAIT_S).until(lambda one: set(one.execute_script(texts)) == {"0", "1", "2", "3"})
    slider.send_keys(Keys.END)
    WebDriverWait(browser, WAIT_S).until(lambda one: set(one.execute_script(texts)) == {"0+1+2+3"})


def test_play_moves_the_slider_and_not_where_motion_is_unwanted(browser, pages, tmp_path):
    slider, _ = opened(browser, pages["ring"])
    button = browser.find_element(By.CSS_SELECTOR, ".slider button")
    button.click()
    assert button.text == "Pause"
    WebDriverWait(browser, WAIT_S).until(lambda _: slider.get_attribute("value") == "6" and button.text == "Play")
    still = started(tmp_path, "--force-prefers-reduced-motion")
    try:
        opened(still, pages["ring"])
        assert not still.find_element(By.CSS_SELECTOR, ".slider button").is_displayed()
    finally:
        still.quit()
