"""Appending within a budget, whole files, names and secrets."""

from __future__ import annotations

import json
import os
import re
import stat
import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from allpull.report.atomic_file import place
from allpull.rundir import layout, redact
from allpull.rundir.write import FLUSH_NS, Appender, no_follow, replaced_file, whole_file, whole_json


def appender(path, budget, told):
    return Appender(str(path), budget, on_trouble=told.append, on_thin=told.append, clock_ns=lambda: 0)


@given(size=st.integers(10, 200), budget=st.integers(4096, 20_000), count=st.integers(1, 2000))
def test_a_file_never_passes_its_budget_and_covers_the_run_to_its_end(tmp_path_factory, size, budget, count):
    path = tmp_path_factory.mktemp("a") / "x.jsonl"
    told: list = []
    writer = appender(path, budget, told)
    for number in range(count):
        writer.add(f"{number:06d}".ljust(size, "."), 0)
    writer.close()
    kept = [int(line[:6]) for line in path.read_text().splitlines()]
    assert path.stat().st_size <= budget
    assert len(kept) + writer.left_out == count
    assert kept == sorted(set(kept))
    assert told == [4**level for level in range(1, len(told) + 1)]
    if count * (size + 1) <= budget // 2:
        assert len(kept) == count
    elif budget > 40 * size:  # then there are levels enough for 2,000 lines
        assert kept[-1] >= count * 0.5  # thinned, not cut off


def test_lines_are_on_disk_within_the_flush_time(tmp_path):
    writer = appender(tmp_path / "x", 1000, [])
    writer.add("one", 0)
    assert (tmp_path / "x").read_text() == ""
    writer.add("two", FLUSH_NS)
    assert (tmp_path / "x").read_text() == "one\ntwo\n"


def test_a_file_of_another_writer_is_never_touched(tmp_path):
    (tmp_path / "x").write_text("theirs")
    told: list = []
    writer = appender(tmp_path / "x", 1000, told)
    writer.add("ours", 0)
    writer.close()
    assert (tmp_path / "x").read_text() == "theirs"
    assert told == ["x: File exists"]
    assert (writer.left_out, writer.is_open) == (1, False)


def test_a_whole_file_is_the_old_one_or_the_new_one(tmp_path):
    path = tmp_path / "run.json"
    whole_json(str(path), {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        whole_json(str(path), {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    with pytest.raises(UnicodeEncodeError):
        whole_file(str(path), "\ud800")
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["run.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("linked", [False, True])
def test_a_device_or_a_pipe_is_not_replaced_by_a_file(tmp_path, linked):
    """As ``report -o /dev/null`` and ``-o /dev/stdout`` of root would."""
    path = pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    if linked:
        path = tmp_path / "link"
        path.symlink_to(pipe)
    with pytest.raises(OSError, match="Not a regular file") as refused:
        whole_file(str(path), "ours")
    assert refused.value.filename == str(path)
    assert path.is_symlink() == linked
    assert stat.S_ISFIFO(pipe.stat().st_mode)


WRITERS = {"whole_file": lambda path: whole_file(str(path), "ours"), "report": lambda path: place(path, b"ours")}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_links_planted_for_every_process_id_lead_nowhere(tmp_path, write):
    """A folder of a stranger, with a link to a file of ours under each temporary name that earlier versions used."""
    victim, folder = tmp_path / "victim", tmp_path / "strange"
    victim.write_text("precious")
    folder.mkdir()
    for pid in {os.getpid(), *range(1, 2000)}:
        for name in (f"report.html.{pid}.tmp", f".report.html.{pid}.partial", f"report.html.{pid}.partial"):
            (folder / name).symlink_to(victim)
    planted = set(os.listdir(folder))
    (folder / "report.html").symlink_to(victim)
    write(folder / "report.html")
    assert victim.read_text() == "precious"
    assert not (folder / "report.html").is_symlink()
    assert (folder / "report.html").read_text() == "ours"
    assert set(os.listdir(folder)) == {*planted, "report.html"}


def test_a_temporary_name_cannot_be_guessed_and_is_never_opened_through_a_link(tmp_path, monkeypatch):
    names = []
    for _ in range(20):
        with replaced_file(str(tmp_path / "run.json")):
            names += os.listdir(tmp_path)
    scratch = {name for name in names if name != "run.json"}
    assert len(scratch) == 20
    assert all(re.fullmatch(r"run\.json\.[0-9a-f]{16}\.tmp", name) for name in scratch)
    monkeypatch.setattr("secrets.token_hex", lambda size: "guessed")
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "run.json.guessed.tmp").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        whole_file(str(tmp_path / "run.json"), "ours")
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_folder_that_is_exchanged_for_a_link_while_a_file_is_written_changes_nothing(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "home/run.json").write_text("precious")
    with replaced_file(str(tmp_path / "folder/run.json")) as file:
        file.write(b"ours")
        (tmp_path / "folder").rename(tmp_path / "moved")
        (tmp_path / "folder").symlink_to(tmp_path / "home")
    assert (tmp_path / "home/run.json").read_text() == "precious"
    assert (tmp_path / "moved/run.json").read_text() == "ours"
    assert os.listdir(tmp_path / "home") == ["run.json"]


def test_a_log_is_not_appended_through_a_link(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "agent.log").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic"), open(tmp_path / "agent.log", "ab", opener=no_follow):
        pass
    assert (tmp_path / "victim").read_text() == "precious"


@given(st.text(max_size=200))
def test_any_name_makes_a_safe_file_name(name):
    slug = layout.slug(name)
    assert 0 < len(slug) <= layout.MAX_NAME
    assert set(slug) <= set(string.ascii_letters + string.digits + "._-")
    assert slug not in (".", "..")
    assert not slug.startswith((".", "-"))
    assert layout.slug(slug) == slug


SECRETS = [
    "ghp_abcdefghijklmnop1234",
    "hf_abcdefghijklmnop1234",
    "AKIAIOSFODNN7EXAMPLE",
    "glpat-abcdefghijklmnop1234",
    "xoxb-1234567890-abcdef",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("around", ["{}", "--x={}", "export A='{}'", "got {} from", '{{"a": "{}"}}', "a/{}/b"])
def test_secrets_of_a_known_shape_are_masked_anywhere(secret, around):
    clean, count = redact.text(around.format(secret))
    assert secret not in clean
    assert count == 1


@pytest.mark.parametrize(
    "line",
    [
        "WANDB_API_KEY=s3cret python train.py",
        "train.py --password s3cret",
        "train.py --api-key=s3cret",
        "train.py --hf_token 's3cret'",
        "curl -H 'Authorization: Bearer s3cretvalue12'",
        '{"client_secret": "s3cret"}',
        "https://user:s3cret@example.org/repo.git",
        "AWS_SECRET_ACCESS_KEY: s3cret",
        "-----BEGIN RSA PRIVATE KEY-----\ns3cret\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\ns3cret",
    ],
)
def test_secrets_under_a_telling_name_are_masked(line):
    clean, count = redact.text(line)
    assert "s3cret" not in clean
    assert count >= 1
    assert redact.text(clean) == (clean, 0)


@pytest.mark.parametrize(
    "line",
    [
        "python train.py --lr 0.1 --epochs 90 --tokenizer bert --keyboard us",
        "KeyError: 'fc.weight'",
        "missing key: conv1.weight",
        "PWD=/home/me  TOKENIZERS_PARALLELISM=false  MONKEY=1",
        "https://example.org/a/b?x=1",
        "step 12: 64 tokens per second",
    ],
)
def test_what_is_no_secret_stays_readable(line):
    assert redact.text(line) == (line, 0)


@given(st.text(string.ascii_letters + string.digits, min_size=6, max_size=30))
def test_a_secret_in_its_own_argument_is_masked(secret):
    assume(secret.lower() not in "redacted")
    clean, count = redact.arguments(["train.py", "--auth-token", secret, "--lr", "0.1"])
    assert clean == ["train.py", "--auth-token", "[redacted]", "--lr", "0.1"]
    assert count == 1


@given(st.text(max_size=300))
def test_masking_never_fails_and_is_stable(text):
    clean, _ = redact.text(text)
    again, _ = redact.text(clean)
    assert redact.text(again)[0] == again


@pytest.mark.parametrize(
    "command",
    [
        ["--pw", "hunter2"],
        ["--pw=hunter2"],
        ["--key", "hunter2"],
        ["--api-key", "hunter2"],
        ["-key=hunter2"],
        ["--x", "AKIAIOSFODNN7EXAMPLE"],
        ["ghp_0123456789abcdefghij0123456789abcdef"],
        ["hf_0123456789abcdefghij"],
        ["sk-0123456789abcdefghij"],
        ["--set", "key=QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo0"],
    ],
)
def test_what_is_or_looks_like_a_key_is_masked(command):
    masked, count = redact.arguments(["train.py", *command])
    assert count == 1
    assert not {"hunter2", command[-1]} & set(masked)
    text, _ = redact.text(" ".join(["train.py", *command]))
    assert redact.MASK in text
    assert "hunter2" not in text


@pytest.mark.parametrize("text", ["missing key: conv1", "KeyError: 'conv1'", "--keyboard us", "--keep 3", "key=conv1"])
def test_what_is_no_key_stays_readable(text):
    assert redact.text(text) == (text, 0)
    assert redact.arguments(text.split(" ")) == (text.split(" "), 0)
