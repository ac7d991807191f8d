"""The pages of the labs in a real browser: no error, no request, a slider that keys move, and the computed values."""

import shutil

import pytest

from allpull.labs import batch_page, overlap_page, ring_page, sgd_page, straggler_page
from allpull.labs.batch_page import curve_text
from allpull.labs.ring import RingLab, run_ring
from allpull.labs.sgd import SgdLab, run_sgd
from allpull.report.page import render_page
from allpull.units import show_time

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
def results(stragglers, overlaps, batch_result):
    return {
        "sgd": run_sgd(SgdLab(batch=1000, epochs=40)),
        "ring": run_ring(RingLab(ranks=4, size_bytes=65536)),
        "straggler": stragglers,
        "overlap": overlaps,
        "batch": batch_result,
    }


@pytest.fixture(scope="module")
def pages(results, tmp_path_factory):
    folder = tmp_path_factory.mktemp("labs")
    makers = {
        "sgd": sgd_page.page,
        "ring": ring_page.page,
        "straggler": straggler_page.page,
        "overlap": overlap_page.page,
        "batch": batch_page.page,
    }
    made = {name: makers[name](result) for name, result in results.items()}
    for name, page in made.items():
        (folder / f"{name}.html").write_text(render_page(page), "utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in made}


def opened(browser, address, width=1200):
    browser.set_window_size(width, 900)
    browser.get(address)
    boxes = "[...document.querySelectorAll('.box')].filter((box) => box.clientWidth)"  # what a guess hides has none
    drawn = f"return {boxes}.every((box) => box.dataset.state === 'live')"
    WebDriverWait(browser, WAIT_S).until(lambda one: one.execute_script(drawn))


def slider_of(browser):
    """The slider of a page, and what it says."""
    return [browser.find_element(By.CSS_SELECTOR, f".slider {tag}") for tag in ("input", "output")]


@pytest.mark.parametrize("name", ["sgd", "ring", "straggler", "overlap", "batch"])
@pytest.mark.parametrize("width", [1200, 420])
def test_a_page_is_quiet_and_fits(browser, pages, name, width):
    opened(browser, pages[name], width)
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    requests = "return performance.getEntriesByType('resource').map((one) => one.name)"
    assert [one for one in browser.execute_script(requests) if not one.startswith("data:")] == []
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")


def test_keys_move_the_path_to_the_computed_values(browser, pages, results):
    opened(browser, pages["sgd"])
    slider, output = slider_of(browser)
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
    opened(browser, pages["ring"])
    slider, _ = slider_of(browser)
    slider.send_keys(Keys.HOME)
    marks = "[data-spec=spec-chunks] .live .mark-text.role-mark text"
    texts = f"return [...document.querySelectorAll('{marks}')].map((one) => one.textContent)"
    WebDriverWait(browser, WAIT_S).until(lambda one: set(one.execute_script(texts)) == {"0", "1", "2", "3"})
    slider.send_keys(Keys.END)
    WebDriverWait(browser, WAIT_S).until(lambda one: set(one.execute_script(texts)) == {"0+1+2+3"})


def test_keys_choose_the_batch_whose_trainings_are_drawn(browser, pages, results):
    opened(browser, pages["batch"])
    slider, output = slider_of(browser)
    slider.send_keys(Keys.HOME)
    assert output.text == curve_text(results["batch"], 32)
    slider.send_keys(Keys.ARROW_RIGHT)
    assert output.text == curve_text(results["batch"], 64)
    view = "return document.querySelector('[data-spec=spec-curves]').view.signal('moment')"
    assert browser.execute_script(view) == 1
    marks = "return document.querySelectorAll('[data-spec=spec-curves] .live .mark-line.role-mark path').length"
    assert browser.execute_script(marks) == 9  # three rules, three seeds


def test_play_moves_the_slider_and_not_where_motion_is_unwanted(browser, pages, tmp_path):
    opened(browser, pages["ring"])
    slider, _ = slider_of(browser)
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


def test_a_guess_by_keys_reveals_the_answer_and_the_measured_values(browser, pages, results):
    opened(browser, pages["straggler"], 420)
    case, section = results["straggler"].cases[0], browser.find_element(By.ID, "a")
    button = section.find_element(By.CSS_SELECTOR, ".guess button")
    assert not section.find_element(By.CSS_SELECTOR, ".cards").is_displayed()
    assert not button.is_enabled()
    cause, rank = section.find_elements(By.CSS_SELECTOR, ".guess fieldset")
    radio = cause.find_element(By.CSS_SELECTOR, "input")
    radio.send_keys(Keys.SPACE)
    assert not button.is_enabled()
    rank.find_element(By.CSS_SELECTOR, "input").send_keys(Keys.SPACE)
    for _ in range(case.rank):
        browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert section.find_element(By.CSS_SELECTOR, ".cards h3").text == case.findings[0].title
    is_first = case.fault == "slow-rank"  # the first of the causes
    assert cause.find_element(By.TAG_NAME, "output").text.startswith("Right" if is_first else "No")
    assert rank.find_element(By.TAG_NAME, "output").text == f"Right: rank {case.rank} is the one that never waits."
    values = [one.text for one in section.find_elements(By.CSS_SELECTOR, ".tiles .value")]
    assert values[2:] == [f"{case.promised.value:.2f}×", f"{case.came.value:.2f}×"]
    live = "return document.querySelector('[data-spec=spec-mended-a]').dataset.state === 'live'"
    WebDriverWait(browser, WAIT_S).until(lambda one: one.execute_script(live))
    assert not browser.find_element(By.CSS_SELECTOR, "#b .cards").is_displayed()
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_the_slider_shows_the_recorded_buckets_of_each_size(browser, pages, results):
    opened(browser, pages["overlap"])
    slider, output = slider_of(browser)
    points = "return document.querySelectorAll('[data-spec=spec-lanes] .live .mark-symbol.role-mark path').length"
    for key, run in zip((Keys.HOME, Keys.END), results["overlap"].runs, strict=True):
        slider.send_keys(key)
        WebDriverWait(browser, WAIT_S).until(lambda one, run=run: one.execute_script(points) == len(run.buckets))
        assert output.text.startswith(f"{run.bucket_mib:g} MiB: {len(run.buckets)} bucket")
        assert f"{show_time(run.hidden_s)} hidden" in output.text
        assert f"a step takes {show_time(run.step_s)}" in output.text
