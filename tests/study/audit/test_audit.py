"""Published measurements contradict themselves where they do, and nowhere else."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.errors import BadInput
from allpull.published.figures import Figure
from allpull.schema.audited import AuditFinding
from allpull.study.audit.run import PUBLISHED, audit_tables

COLUMNS = ("series", "gpus", "batch_per_gpu", "images_per_sec", "speedup", "efficiency", "train_time_s", "notes")


def table(path: Path, *rows: tuple[object, ...]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    return path


def slips(findings: list[AuditFinding]) -> list[tuple[str, str, list[int]]]:
    return [(one.check, one.series, one.rows) for one in findings if one.kind == "slip"]


def test_published_studies_have_the_slips_that_are_known_and_no_other() -> None:
    found = audit_tables(PUBLISHED).findings
    by_study = {
        study: {one.check for one in found if one.series.startswith(study) and one.kind == "slip"}
        for study in {one.series.partition("_")[0] for one in found}
    }
    assert by_study == {
        "hal": {"linear", "accuracy", "extrapolated"},
        "m100": {"samples"},
        "claix": {"product"},
        "dle": {"speed-up"},  # 3.97 stated, 3.94 by its own images/s
    }
    products = [
        (one.claimed.low, one.computed.low, one.computed.high)
        for one in found
        if one.check == "product" and one.claimed
    ]
    assert products == [pytest.approx((0.265, 0.251, 0.264), abs=5e-4), pytest.approx((0.335, 0.320, 0.333), abs=5e-4)]
    (line,) = [one for one in found if one.check == "linear"]
    assert (line.computed.low, line.computed.high) == pytest.approx((0.570, 0.653), abs=5e-4)
    times = [one for one in found if one.check == "extrapolated"]
    assert [round(one.computed.low) for one in times] == [75139, 39980]  # of 2 and of 4 GPUs
    assert {round(one.computed.low, 2) for one in found if one.check == "samples"} == {1.99, 2.0}
    (share,) = [one for one in found if one.check == "share-not-training"]
    assert (share.computed.low, share.computed.high) == pytest.approx((0.030, 0.144), abs=1e-3)  # 75,139 s, as above
    assert share.kind == "observation"


@given(
    st.floats(1, 1e4),
    st.lists(st.floats(0.5, 1.0), min_size=1, max_size=6),
    st.integers(0, 3),
)
def test_a_series_that_is_only_rounded_has_no_slip(
    tmp_path_factory: pytest.TempPathFactory, rate: float, shares: list[float], digits: int
) -> None:
    path = tmp_path_factory.mktemp("audit") / "table.csv"
    base = round(rate, 2)
    rows: list[tuple[object, ...]] = [("clean", 1, 64, f"{base:.2f}", "1.0", "1.0", f"{1e9 / base:.1f}", "")]
    for doubling, share in enumerate(shares, start=1):
        gpus = 2**doubling
        exact = base * gpus * share
        speedup = exact / base
        rows.append(
            ("clean", gpus, 64, f"{exact:.2f}", f"{speedup:.{digits}f}", f"{share:.3f}", f"{1e9 / exact:.1f}", "")
        )
    if all(float(row[4]) > 0 for row in rows):
        assert slips(audit_tables([table(path, *rows)]).findings) == []


def test_a_wrong_speedup_and_a_wrong_efficiency_are_slips(tmp_path: Path) -> None:
    rows = [
        ("s", 1, 64, 100, 1.0, 1.0, "", ""),
        ("s", 4, 64, 300, 3.5, 0.75, "", ""),
        ("s", 8, 64, 600, 6.0, 0.9, "", ""),
    ]
    assert slips(audit_tables([table(tmp_path / "t.csv", *rows)]).findings) == [
        ("speed-up", "s", [3]),
        ("efficiency", "s", [4]),
    ]


def test_a_table_needs_only_sizes_and_one_measurement(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(
        "ranks,samples_per_s,speedup,epoch_time_s,samples\n1,100,1.0,1000,100000\n4,350,3.2,286,100000\n"
    )
    assert slips(audit_tables([tmp_path / "mine.csv"]).findings) == [("speed-up", "mine", [3])]
    (tmp_path / "short.csv").write_text("ranks,images_per_s,epoch_time_s,samples\n1,100,1000,300000\n")
    assert slips(audit_tables([tmp_path / "short.csv"]).findings) == [("samples", "short", [2])]


def test_speedups_over_another_setup_are_not_recomputed(tmp_path: Path) -> None:
    rows = [("s", 1, 64, 100, 1.0, "", "", ""), ("s", 4, 128, 300, 3.5, "", "", "")]
    assert audit_tables([table(tmp_path / "t.csv", *rows)]).findings == []


def test_more_epochs_than_fit_into_the_time_are_a_slip(tmp_path: Path) -> None:
    rows = [("s", 1, 64, 100, "", "", 1000, "epochs=11; samples=10000")]
    assert slips(audit_tables([table(tmp_path / "t.csv", *rows)]).findings) == [("samples", "s", [2])]


def test_gains_that_do_not_fit_both_speedups_are_a_slip(tmp_path: Path) -> None:
    slow = [("slow", n, 64, "", speedup, "", "", "") for n, speedup in ((1, "1.00"), (8, "7.70"))]
    fast = [
        ("fast", n, 64, "", speedup, "", "", "gain_over=slow; gain_percent=60-80")
        for n, speedup in ((1, "1.00"), (8, "5.00"))
    ]
    assert [one.check for one in audit_tables([table(tmp_path / "t.csv", *slow, *fast)]).findings] == ["gain"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "no column gpus or ranks"),
        ("series,gpus\n1,2\n", "with none of images_per_sec, speedup"),
        (",".join(COLUMNS) + "\ns,many,,,,,,\n", "line 2: gpus: 'many'"),
        (",".join(COLUMNS) + "\ns,2,64,nan,,,,\n", "line 2: images_per_sec: 'nan'"),
        (",".join(COLUMNS) + "\ns,2,64,-3,,,,\n", "line 2: images_per_sec: '-3'"),
        (",".join(COLUMNS) + "\ns,2,64,1e99,,,,\n", "line 2: images_per_sec"),
        (",".join(COLUMNS) + "\n" + "s," * 40 + "\n", "line 2 has more columns"),
        (",".join(map("c{}".format, range(200_000))) + "\n", "has 200,000 columns"),
        (",".join(map("c{}".format, range(1_000))) + "\n" + "1\n" * 5_001, "line 5002 has more columns, or rows"),
        (",".join(COLUMNS) + '\n"s,2', "no CSV file"),
    ],
)
def test_what_is_no_table_is_refused_with_its_line(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(BadInput, match=reason.replace("(", r"\(")):
        audit_tables([tmp_path / "t.csv"])


def test_bytes_and_folders_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "t.csv", tmp_path, tmp_path / "none.csv"):
        with pytest.raises(BadInput):
            audit_tables([path])


@given(st.decimals("0.001", "9999", places=3))
def test_what_is_printed_holds_what_was_rounded(value: object) -> None:
    exact = float(str(value))
    for digits in range(4):
        text = f"{exact:.{digits}f}"
        if float(text) > 0:
            figure = Figure.printed(text)
            assert figure.low - 1e-9 <= exact <= figure.high + 1e-9


@pytest.mark.parametrize(("whole", "found"), [("0.34", ["product"]), ("0.33", [])])
def test_a_table_of_efficiencies_alone_is_audited(tmp_path: Path, whole: str, found: list[str]) -> None:
    """As the slides about CLAIX have them."""
    path = tmp_path / "claix.csv"
    row = f"64,POP_parallel_efficiency={whole}; POP_load_balance=0.99; POP_comm_efficiency=0.33"
    path.write_text(f"gpus,notes\n{row}\n")
    assert [check for check, _, _ in slips(audit_tables([path]).findings)] == found
    path.write_text("gpus,notes\n64,epochs=5; claim=near linear\n")
    with pytest.raises(BadInput, match="none of images_per_sec"):
        audit_tables([path])
