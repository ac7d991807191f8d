"""The live page: for whoever knows its address, from this machine, and without a request to anywhere else."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from allpull.errors import BadInput
from allpull.report.live import MOST_CONNECTIONS, MOST_RANKS, LivePage, late_rank
from allpull.schema.base import tag
from allpull.schema.results import RankWatched, WatchResult

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e"


def rank(number: int, *, own_s: float = 0.06, late_s: float = 0.0) -> RankWatched:
    return RankWatched(
        rank=number, host=HOSTILE, pid=7, alive=True, ended=False, steps_done=20, step_s=0.1, own_s=own_s,
        phase="forward", operation=None, phase_for_s=0.2, phases={"forward": own_s, "collective": 0.04}, late_s=late_s,
    )  # fmt: skip


def job(*ranks: RankWatched, **changes: Any) -> WatchResult:
    usual: dict[str, Any] = {"schema": tag("watch"), "run": HOSTILE, "status": "running", "ranks_expected": len(ranks)}
    usual |= {"steps_done": 20, "steps_total": 80, "epoch": 0, "left_s": 6.0, "step_s": 0.1, "samples_per_s": 160.0}
    usual |= {"phases": {"forward": 0.06, "collective": 0.04}, "ranks": list(ranks), "troubles": []}
    return WatchResult.model_validate({**usual, **changes})


@pytest.fixture
def live():
    made = LivePage()
    made.update(job(rank(0), rank(1, own_s=0.09, late_s=0.03)))
    yield made
    made.close()


def request(live: LivePage, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=30)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def below(live: LivePage) -> str:
    return "/" + live.url.split("/", 3)[3]


def test_the_page_and_its_numbers_have_an_address_that_cannot_be_guessed(live):
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", live.url)
    status, headers, page = request(live, below(live))
    assert status == 200
    assert b"allpull watch" in page
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    shown = json.loads(request(live, below(live) + "snapshot.json")[2])
    assert shown["late"] == 1
    assert shown["history"][-1][1] == 160.0


@pytest.mark.parametrize("path", ["/", "/snapshot.json", "//", "/x/snapshot.json", "/../live.css", "*"])
def test_without_the_token_there_is_nothing(live, path):
    status, _, body = request(live, path)
    assert status == 404
    assert b"160" not in body


@pytest.mark.parametrize("name", ["../page.py", "live.py", "live.css/", "%2e%2e/page.css", "snapshot.json?x"])
def test_below_the_token_are_only_the_files_of_the_page(live, name):
    assert request(live, below(live) + name)[0] == 404


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:{port}.evil.example", ""]
)
def test_a_name_that_was_made_to_lead_here_is_refused(live, host):
    """DNS rebinding: the browser takes us for that site, and lets its pages read us."""
    status, _, body = request(live, below(live) + "snapshot.json", Host=host.format(port=live.port))
    assert status == 421
    assert b"snapshot" not in body
    assert request(live, below(live), Host=f"localhost:{live.port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_can_only_be_read(live, method):
    assert request(live, below(live), method)[0] == 501


def test_whoever_opens_many_connections_locks_nobody_out(live):
    """The attack of another user of this host: connections that say nothing, or begin a request and never end it."""
    slow = []
    for number in range(MOST_CONNECTIONS + 40):
        slow.append(socket.create_connection(("127.0.0.1", live.port), timeout=30))
        slow[-1].sendall(b"GET /" if number % 2 else b"")
    assert request(live, below(live))[0] == 200
    assert len(live._server._open) <= MOST_CONNECTIONS
    assert slow[0].recv(1) == b""  # the oldest were ended
    for one in slow:
        one.close()


def test_a_port_that_is_taken_is_an_error_of_the_user(live):
    with pytest.raises(BadInput, match=str(live.port)):
        LivePage(live.port)


def test_after_its_end_nothing_listens(live):
    ended = LivePage()
    ended.close()
    with pytest.raises(ConnectionRefusedError):
        request(ended, "/")


def test_of_many_ranks_those_that_matter_are_sent(live):
    live.update(job(*(rank(number, late_s=0.001 * number) for number in range(4096))))
    shown = json.loads(request(live, below(live) + "snapshot.json")[2])
    ranks = [one["rank"] for one in shown["snapshot"]["ranks"]]
    assert ranks == list(range(4096 - MOST_RANKS, 4096))
    assert "4,032" in shown["hidden"]


def test_who_is_late():
    assert late_rank([rank(0), rank(1, late_s=0.03)]) == 1
    assert late_rank([rank(0), rank(1, late_s=0.0002)]) is None
    assert late_rank([rank(0, late_s=0.03)]) is None
    assert late_rank([]) is None


def test_its_files_name_no_other_place():
    for name in ("live.html", "live.css", "live.js"):
        text = files("allpull.report.html").joinpath(name).read_text("utf-8")
        assert not re.search(r"https?:|//\w+\.|@import|innerHTML|eval\(|url\(", text)


LOOP = """
import os, time, torch, torch.distributed as dist
from pathlib import Path
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
network = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8 * 20_000, 64)), batch_size=8)
for (batch,) in batches:
    optimizer.zero_grad()
    loss = network(batch).sum()
    if dist.get_rank() == 1:
        time.sleep(0.03)
    loss.backward()
    optimizer.step()
    ends = torch.tensor(float(Path("stop").exists()))
    dist.all_reduce(ends)
    if ends:
        break
"""


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.ranks
def test_a_browser_shows_a_job_on_two_ranks_from_its_begin_to_its_end(tmp_path):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.support.ui import WebDriverWait  # noqa: PLC0415  as the line above

    (tmp_path / "loop.py").write_text(LOOP)
    allpull = [sys.executable, "-m", "allpull"]
    running = subprocess.Popen([*allpull, "run", "-n", "2", "--", "loop.py"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    watching = None
    browser = None
    try:
        while not list(tmp_path.glob("runs/*/steps/rank-00001.jsonl")):
            assert running.poll() is None
            time.sleep(0.2)
        watching = subprocess.Popen(
            [*allpull, "watch", "latest", "--serve"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        assert watching.stdout is not None
        url = watching.stdout.readline().strip()
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        browser = webdriver.Chrome(service=webdriver.ChromeService(shutil.which("chromedriver")), options=options)
        browser.get(url)
        wait = WebDriverWait(browser, 60)
        script = browser.execute_script
        wait.until(lambda _: script("return document.querySelector('.rank.late b')?.textContent") == "rank 1")
        drawn = int(script("return document.body.dataset.drawn"))
        wait.until(lambda _: int(script("return document.body.dataset.drawn")) > drawn + 3)
        wait.until(lambda _: script("return document.querySelector('#curve path').getAttribute('d')"))
        for width in (1400, 420):
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            assert script("return document.documentElement.scrollWidth") <= width
            parts = script("return [...document.querySelectorAll('.phases i')].map(part => part.clientWidth)")
            assert max(parts) > 20
            keep(browser, width)
        (tmp_path / "stop").touch()
        wait.until(lambda _: script("return document.body.dataset.ended") == "yes")
        assert "completed" in script("return document.querySelector('#state').textContent")
        assert (running.wait(60), watching.wait(60)) == (0, 0)
        assert [line for line in browser.get_log("browser") if line["level"] in {"SEVERE", "WARNING"}] == []
    finally:
        (tmp_path / "stop").touch()
        if browser is not None:
            browser.quit()
        for process in (watching, running):
            if process is not None:
                process.kill() if process is watching else process.terminate()
                process.wait()


def keep(browser: Any, width: int) -> None:
    """A picture of the page beside the others that a person looks at, where there is a folder for them."""
    folder = Path("build/pictures")
    if folder.is_dir():
        browser.save_screenshot(str(folder / f"live-{width}.png"))
