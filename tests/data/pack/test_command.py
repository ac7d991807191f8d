"""The verb: what it makes, says and refuses."""

from __future__ import annotations

import json


def test_make_info_verify(run_cli, run_here, folder, tmp_path):
    target = tmp_path / "pack"
    done = run_cli("pack", str(folder), str(target), "--kind", "jpeg-restart", "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "forecast from 24 samples" in done.stderr
    assert "40 records" in done.stderr
    info = run_here("pack", "info", str(target), "--json")
    assert json.loads(info.stdout)["codecs"] == {"jpeg with restart segments": 40}
    assert next(iter(json.loads(info.stdout))) == "schema"
    assert "3 classes" in run_here("pack", "info", str(target)).stdout
    assert "every byte is as written" in run_here("pack", "verify", str(target)).stdout
    again = run_here("pack", str(folder), str(target), "--kind", "jpeg-restart")
    assert again.returncode == 0
    assert "already" in again.stderr
    with (target / "shard-00000.pack").open("r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    broken = run_here("pack", "verify", str(target), "--json")
    assert broken.returncode == 3
    assert json.loads(broken.stdout)["faults"] == 1


def test_dry_run_writes_nothing(run_here, folder, tmp_path):
    done = run_here("pack", "--dry-run", str(folder), str(tmp_path / "pack"))
    assert done.returncode == 0
    assert "forecast" in done.stderr
    assert not (tmp_path / "pack").exists()


def test_what_is_wrong_is_said_in_a_line(run_here, folder, tmp_path):
    for arguments, word in (
        (("pack", str(folder), str(tmp_path / "p"), "--kind", "jpg"), "no kind of pack 'jpg'"),
        (("pack", str(tmp_path / "nothing"), str(tmp_path / "p")), "no such folder"),
        (("pack", str(folder), str(tmp_path / "p"), "--source", "lmdb"), "no source 'lmdb'"),
        (("pack", "info", str(folder)), "not a pack"),
        (("pack", str(folder), str(tmp_path / "p"), "--shard-size", "7"), "shards of 7 bytes"),
    ):
        done = run_here(*arguments)
        assert done.returncode == 2, done.stderr
        assert word in done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "p").exists()


def test_a_class_without_samples_is_named(run_here, folder, tmp_path):
    root = tmp_path / "source"
    (root / "no picture").mkdir(parents=True)
    (root / "one").mkdir()
    (root / "one" / "1.jpg").write_bytes(next((folder / "class 1").iterdir()).read_bytes())
    done = run_here("pack", str(root), str(tmp_path / "p"), "--workers", "1")
    assert "warning: classes without a sample: no picture" in done.stderr
    assert "1 record, " in done.stderr
    assert "classes without" not in run_here("pack", "--dry-run", str(folder), str(tmp_path / "q")).stderr
