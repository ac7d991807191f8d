"""Figures are valid files of three formats, and their letters can be read at 8 cm wide."""

import re
import struct
import zlib
from xml.etree import ElementTree as ET

import pytest
import vl_convert
from report_samples import empty, hostile, one, three

from allpull.errors import BadInput
from allpull.report.figures import write_figures
from allpull.report.html.draw import svg, vega_lite

CHARTS = ["accuracy", "loss", "phases", "steps", "throughput"]
WIDTH_PT = 8 / 2.54 * 72
SMALLEST_PT = 7.0  # what journals ask of letters in figures


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_figures(three(), tmp_path_factory.mktemp("figures") / "made here")


def test_each_chart_comes_in_three_formats(written):
    assert sorted(path.name for path in written) == sorted(
        f"{c}.{kind}" for c in CHARTS for kind in ("png", "svg", "pdf")
    )
    assert set(written[0].parent.iterdir()) == set(written)


def chunks(png):
    """Chunks of a PNG file, each checked against its sum."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at = 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length]) == (zlib.crc32(kind + body),)
        yield kind, body
        at += 12 + length


def test_png_is_whole_and_at_twice_the_size_of_the_svg(written):
    for path in (path for path in written if path.suffix == ".png"):
        found = list(chunks(path.read_bytes()))
        assert (found[0][0], found[-1][0]) == (b"IHDR", b"IEND")
        width, height = struct.unpack(">II", found[0][1][:8])
        svg = ET.parse(path.with_suffix(".svg")).getroot()
        assert (width, height) == pytest.approx((2 * float(svg.get("width")), 2 * float(svg.get("height"))), abs=1)
        pixels = zlib.decompress(b"".join(body for kind, body in found if kind == b"IDAT"))
        assert len(set(pixels)) > 20  # something is drawn


def test_svg_has_its_title_units_and_letters_of_a_legible_size(written):
    titles = {"throughput": "Samples per second", "phases": "Time per step (ms)", "steps": "Step time (ms)"}
    for path in (path for path in written if path.suffix == ".svg"):
        svg = ET.parse(path).getroot()
        texts = [element for element in svg.iter() if element.tag.endswith("}text")]
        said = {element.text for element in texts}
        assert titles.get(path.stem, "Epochs") in said
        sizes = [float(element.get("font-size").removesuffix("px")) for element in texts]
        assert min(sizes) * WIDTH_PT / float(svg.get("width")) >= SMALLEST_PT
        assert any(element.get("font-weight") == "600" for element in texts)  # the title


def test_nothing_is_cut_off_at_the_edges(written):
    for path in (path for path in written if path.suffix == ".svg"):
        svg = ET.parse(path).getroot()
        frame = svg.find("{*}g")
        shift = re.match(r"translate\(([-\d.]+),([-\d.]+)\)", frame.get("transform"))
        assert float(shift.group(1)) > 0
        assert float(shift.group(2)) >= 20  # room for the title above the plot


def test_pdf_is_one_page_whose_letters_are_text(written):
    for path in (path for path in written if path.suffix == ".pdf"):
        content = path.read_bytes()
        assert content.startswith(b"%PDF-1.")
        assert content.rstrip().endswith(b"%%EOF")
        assert b"/Font" in content
        assert len(re.findall(rb"/Type\s*/Page\b", content)) == 1


def test_what_was_not_measured_is_no_figure(tmp_path):
    assert write_figures(empty(), tmp_path / "none") == []
    assert {path.stem for path in write_figures(one(), tmp_path / "one")} == {"phases", "steps", "loss", "accuracy"}


def test_hostile_names_change_no_file_name(tmp_path):
    names = {path.stem for path in write_figures(hostile(), tmp_path)}
    assert names <= set(CHARTS)
    for path in tmp_path.glob("*.svg"):
        assert not [e for e in ET.parse(path).getroot().iter() if e.tag.endswith("}script")]


def test_a_directory_that_cannot_be_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot write"):
        write_figures(one(), tmp_path / "file" / "figures")


def test_paths_have_no_more_digits_than_a_screen_shows() -> None:
    """The picture stays the same: no number moved by half a hundredth of a pixel."""
    drawn = {"data": {"values": [{"x": x, "y": 1 / (x + 3)} for x in range(7)]}, "mark": "line"}
    drawn["encoding"] = {"x": {"field": "x", "type": "ordinal"}, "y": {"field": "y", "type": "quantitative"}}
    exact = vl_convert.vegalite_to_svg(drawn, vl_version=vega_lite())
    rounded = svg(drawn)
    number = re.compile(r"\d+(?:\.\d+)?")
    before, after = ([float(one) for one in number.findall(text)] for text in (exact, rounded))
    assert max(abs(one - other) for one, other in zip(before, after, strict=True)) <= 0.005
    assert len(rounded) < len(exact)
