"""Host lists mean what Slurm means by them."""

from __future__ import annotations

import shutil
import string
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpull.errors import BadInput
from allpull.launch.hostlist import MAX_NAMES, compress, expand

WORDS = st.text(string.ascii_letters + string.digits + "-.", min_size=1, max_size=6)
NUMBERS = st.integers(0, 1200)


@st.composite
def ranges(draw: st.DrawFn) -> str:
    low = draw(NUMBERS)
    width = draw(st.sampled_from([0, 0, 2, 3, 5]))
    if draw(st.booleans()):
        return f"{low:0{width}d}"
    return f"{low:0{width}d}-{low + draw(st.integers(0, 12)):0{width}d}"


@st.composite
def host_lists(draw: st.DrawFn, brackets: int = 3, endings: bool = True) -> str:
    """Lists of names with up to ``brackets`` brackets each; ``endings``: with text behind the last one too."""
    words = []
    for _ in range(draw(st.integers(1, 4))):
        word = "h"
        for _ in range(draw(st.integers(0, brackets))):
            inner = ",".join(draw(st.lists(ranges(), min_size=1, max_size=3)))
            word += draw(st.text(string.ascii_lowercase + "-", max_size=3)) + f"[{inner}]"
        words.append(word + draw(st.text(string.ascii_lowercase, max_size=3 if endings else 0)))
    return ",".join(words)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("a", ["a"]),
        ("node[01-03,7]", ["node01", "node02", "node03", "node7"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("gpu-[1-2]-ib,x", ["gpu-1-ib", "gpu-2-ib", "x"]),
        ("r[1-2]c[0-1]", ["r1c0", "r1c1", "r2c0", "r2c1"]),
        ("a[1,3],b[2],a[1]", ["a1", "a3", "b2", "a1"]),
        ("n1.cluster.example,n2.cluster.example", ["n1.cluster.example", "n2.cluster.example"]),
        (" n[1-2] , m ", ["n1", "n2", "m"]),
    ],
)
def test_lists_that_people_write(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a[1-2", "a '[' without its ']'"),
        ("a1-2]", "a ']' without its '['"),
        ("a[1-[2-3]]", "brackets within brackets"),
        ("a[]", "'' is no number or range"),
        ("a[1-]", "'1-' is no number or range"),
        ("a[x]", "'x' is no number or range"),
        ("a[٣]", "is no number or range"),
        ("a[3-1]", "the range 3-1 runs backwards"),
        ("a,,b", "a host without a name"),
        ("[1-2]", "a host without a name"),
        ("a b", "white space in 'a b'"),
        ("a[1-65537]", "names more than 65,536 hosts"),
        ("a[1-999999999999999999]", "names more than 65,536 hosts"),
        ("a[1-65536]b[1-65536]c[1-65536]", "names more than 65,536 hosts"),
        ("a" + "[1-60000]" * 1000, "names more than 65,536 hosts"),
        ("a[1-40000],b[1-40000]", "names more than 65,536 hosts"),
        ("a[\x1b[2J]", "brackets within brackets"),
        ("x" * (1 << 20) + "y", "1,048,577 characters"),
    ],
)
def test_what_is_no_list_is_one_clear_error(text: str, fault: str) -> None:
    with pytest.raises(BadInput) as caught:
        expand(text)
    assert fault in caught.value.message
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 300


def test_the_largest_list_is_read() -> None:
    assert len(expand(f"a[1-{MAX_NAMES}]")) == MAX_NAMES


@given(st.lists(st.builds(lambda w, n: f"{w}{n}", WORDS, st.one_of(NUMBERS.map(str), NUMBERS.map("{:04d}".format)))))
def test_compressing_loses_nothing_and_keeps_the_order(names: list[str]) -> None:
    assert expand(compress(names)) == names


@given(host_lists())
def test_every_list_survives_compressing(text: str) -> None:
    assert expand(compress(expand(text))) == expand(text)


@given(st.integers(0, 99_999), st.integers(1, 500), st.sampled_from(["n", "rack-1-node", "a.b"]))
def test_a_run_of_hosts_is_one_bracket(first: int, count: int, word: str) -> None:
    short = compress([f"{word}{number:06d}" for number in range(first, first + count)])
    assert short.count("[") == (count > 1)
    assert len(short) <= len(word) + 16


@given(st.text(max_size=40))
def test_any_text_is_a_list_or_one_error(text: str) -> None:
    fault = ""
    try:
        names = expand(text)
    except BadInput as error:
        names, fault = [], error.message
    assert fault.isprintable()
    assert all(name and "," not in name and "[" not in name for name in names)


@pytest.mark.parametrize("name", ["", "a,b", "a[1]", "a b", "a\n"])
def test_a_name_that_no_list_can_hold_is_refused(name: str) -> None:
    with pytest.raises(BadInput):
        compress([name])


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="Slurm is not installed")
@settings(max_examples=60, deadline=None)
@given(host_lists(brackets=2, endings=False))  # it knows no text behind them, and orders three of them in its own way
def test_slurm_reads_lists_the_same_way(slurm_conf: Path, text: str) -> None:
    command = ["env", f"SLURM_CONF={slurm_conf}", "scontrol", "show", "hostnames", text]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert expand(text) == done.stdout.split()


@pytest.fixture(scope="module")
def slurm_conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As little of a configuration as scontrol wants; no daemon runs."""
    path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    path.write_text("ClusterName=test\nSlurmctldHost=localhost\nAuthType=auth/none\nNodeName=n1\n")
    return path


def test_the_command_prints_names(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "allpull.launch.hostlist", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    assert run("n[1-3]").stdout == "n1\nn2\nn3\n"
    assert run("n[1-3]", "--first").stdout == "n1\n"
    wrong = run("n[1-")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "without its ']'" in wrong.stderr
    assert run("").returncode == 2
