"""The page is one file that fetches nothing, runs one script, and shows hostile text as text."""

import base64
import functools
import hashlib
import json
import re
import resource
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from report_samples import HOSTILE, detail, empty, hostile, metrics, one, report, three

from allpull.errors import BadInput
from allpull.report import page as html
from allpull.report.printable import printable, short

FETCHING = {"src", "href", "srcset", "action", "formaction", "data", "poster", "xlink:href", "background", "ping"}
MAKERS = {"one": one, "three": three, "empty": empty, "hostile": hostile}


class Page(HTMLParser):
    """An independent reading of the page: its elements, the text a reader sees, and its scripts."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.scripts, self.style = [], [], [], ""
        self._inside = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append(tag)
            if tag == "script":
                self.scripts.append([dict(attrs), ""])

    def handle_endtag(self, tag):
        if self._inside and tag == self._inside[-1]:
            self._inside.pop()

    def handle_data(self, data):
        if not self._inside:
            self.texts.append(data)
        elif self._inside[-1] == "script":
            self.scripts[-1][1] += data
        else:
            self.style += data

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]

    @property
    def policy(self):
        (content,) = [meta["content"] for meta in self.all("meta") if meta.get("http-equiv")]
        return dict(rule.strip().split(" ", 1) for rule in content.split(";"))


@functools.cache
def rendered(name):
    return html.render(MAKERS[name]())


@pytest.fixture(scope="module", params=MAKERS)
def page(request):
    return Page(rendered(request.param))


@pytest.fixture(scope="module")
def hostile_text():
    return rendered("hostile")


def test_nothing_in_the_page_names_an_address_to_fetch(page):
    for tag, attrs in page.elements:
        for name in FETCHING & set(attrs):
            assert attrs[name] == "data:," or attrs[name].startswith("#"), (tag, name, attrs[name])
    assert not re.search(r"@import|url\(|expression\(", page.style)
    assert not {"iframe", "object", "embed", "img", "video", "audio", "base", "form", "foreignobject"} & {
        tag for tag, _ in page.elements
    }


def test_no_element_carries_an_event_handler(page):
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]


def test_the_policy_forbids_all_but_the_one_script_by_its_hash(page):
    runnable = [text for attrs, text in page.scripts if attrs.get("type") != "application/json"]
    assert len(runnable) == 1
    digest = base64.b64encode(hashlib.sha256(runnable[0].encode()).digest()).decode()
    assert page.policy["default-src"] == "'none'"
    assert page.policy["script-src"] == f"'sha256-{digest}'"
    assert page.policy["img-src"] == "data:"
    assert not {"connect-src", "font-src", "frame-src", "object-src"} & set(page.policy)  # default-src holds


def test_the_vega_bundle_is_there_once_and_each_chart_has_a_picture_and_a_specification(page):
    boxes = [attrs["data-spec"] for attrs in page.all("div") if "data-spec" in attrs]
    specs = {attrs["id"]: json.loads(text) for attrs, text in page.scripts if attrs.get("type") == "application/json"}
    assert list(specs) == boxes
    assert sum("vega-embed" in text for _, text in page.scripts) == 1
    assert len([attrs for attrs in page.all("svg") if attrs.get("class") == "marks"]) == len(boxes)


def test_ids_are_unique_and_every_anchor_leads_somewhere(page):
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {attrs["href"] for attrs in page.all("a")} <= {f"#{name}" for name in ids}


def test_hostile_text_is_shown_as_text_and_makes_no_element(hostile_text):
    page, ordinary = Page(hostile_text), Page(rendered("three"))
    assert {tag for tag, _ in page.elements} - {"pre", "aside"} <= {tag for tag, _ in ordinary.elements}
    assert "alert(1)" in "".join(page.texts)
    assert page.texts.count(printable(HOSTILE)) > 10
    assert not [text for _, text in page.scripts if "alert(1)</" in text]
    assert "{{7*7}}" in hostile_text  # template syntax is not run: the text stands as it is
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", hostile_text.split('<script type="module">')[0]
    )


def test_hostile_text_is_never_an_expression_or_a_field_of_a_chart(hostile_text):
    def walk(node, path):
        if isinstance(node, dict):
            for key, value in node.items():
                assert "alert" not in key
                walk(value, (*path, key))
        elif isinstance(node, list):
            for value in node:
                walk(value, path)
        elif isinstance(node, str) and "</script" in node:
            assert path[0] == "datasets" or path[-1] == "domain", path
            hits.append(path)

    hits = []
    for attrs, text in Page(hostile_text).scripts:
        if attrs.get("type") == "application/json":
            walk(json.loads(text), ())
    assert hits  # the names did reach the charts


def test_pictures_are_well_formed_and_hold_only_shapes_and_text(hostile_text):
    pictures = re.findall(r'<div class="still">(<svg.*?</svg>)</div>', hostile_text, flags=re.DOTALL)
    assert len(pictures) == 4
    for picture in pictures:
        tags = {element.tag.rpartition("}")[2] for element in ET.fromstring(picture).iter()}
        assert tags <= {"svg", "g", "path", "line", "rect", "text", "tspan", "circle"}


def test_each_word_note_gap_and_run_is_on_the_page():
    made = three()
    seen = "".join(Page(rendered("three")).texts).replace("\u00a0", " ")
    for sentence in (*made.words, *made.show.notes, "Scaling report", "95 % confidence interval"):
        assert sentence in seen
    assert "Scaling report: digits" in re.search("<title>(.*?)</title>", rendered("three")).group(1)


def test_a_report_of_nothing_says_so_and_shows_no_zero():
    page = Page(rendered("empty"))
    seen = " ".join(page.texts)
    assert not {"phases", "steps", "learning", "throughput"} & {attrs.get("id") for attrs in page.all("section")}
    assert not re.search(r"(?<![\d.,])0(\.0+)?\s?(ms\b|s\b|%|×)", seen)


def test_files_of_runs_are_linked_relative_to_the_page(tmp_path):
    """A name that looks like an address stays a path."""
    files = ["derived/timeline.json.gz", "traces/a b.json.gz", "../../javascript:alert(1)"]
    run = metrics(1, directory=str(tmp_path / "runs" / "a#b"))
    path = html.write(report([run], details=[detail(run, linked_files=files)]), tmp_path / "pages" / "x.html")
    links = [attrs["href"] for attrs in Page(path.read_text()).all("a") if not attrs["href"].startswith("#")]
    assert links == [
        "./../runs/a%23b/derived/timeline.json.gz",
        "./../runs/a%23b/traces/a%20b.json.gz",
        "./../javascript%3Aalert%281%29",
    ]


def test_the_same_report_gives_the_same_bytes():
    assert html.render(three()) == rendered("three")


def test_very_long_names_are_cut():
    made = report([metrics(1, name="n" * 1_000_000, gaps=["g" * 1_000_000])])
    text = html.render(made)
    assert len(text) < 1_300_000
    assert short("n" * 1_000_000, 80) in text


def test_write_leaves_one_whole_file(tmp_path):
    path = tmp_path / "new" / "a report.html"
    assert html.write(three(), path) == path
    assert path.read_text(encoding="utf-8") == rendered("three")
    assert list(path.parent.iterdir()) == [path]


def test_a_page_that_cannot_be_written_leaves_the_old_one_and_one_clear_error(tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").write_text("kept")
    for path in (tmp_path / "taken", tmp_path / "file" / "report.html", tmp_path / "nul\0l.html"):
        with pytest.raises(BadInput, match="cannot write") as caught:
            html.write(one(), path)
        assert caught.value.hint
        assert "\0" not in str(caught.value)
    assert (tmp_path / "file").read_text() == "kept"
    assert {found.name for found in tmp_path.iterdir()} == {"file", "taken"}


def test_a_full_disk_leaves_no_half_page(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("kept")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(BadInput, match="File too large"):
            html.write(one(), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [path]
