"""Probes on real ranks."""

from __future__ import annotations

import json

import pytest

from allpull.jobs.probing import count_ranks


@pytest.mark.slow
@pytest.mark.ranks
def test_allreduce_gives_the_json_of_the_design(run_cli, tmp_path):
    done = run_cli("probe", "allreduce", "-n", "2", "--sizes", "1KiB,4MiB", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert next(iter(result)) == "schema"
    assert (result["ranks"], result["backend"]) == (2, "nccl" if result["device"] == "cuda" else "gloo")
    assert [one["size_bytes"] for one in result["results"]] == [1024, 4 << 20]
    for one in result["results"]:
        assert one["algbw_bytes_per_s"] == pytest.approx(one["size_bytes"] / one["time_s"])
        assert one["busbw_bytes_per_s"] == pytest.approx(one["algbw_bytes_per_s"])  # 2(N−1)/N is 1 for N = 2
        assert one["repetitions"] >= 7
    assert result["fit"]["link_bytes_per_s"]["value"] > 1e6
    assert "run directory:" in done.stderr


@pytest.mark.slow
@pytest.mark.ranks
def test_clock_of_one_host_has_nothing_to_compare(run_cli, tmp_path):
    done = run_cli("probe", "clock", "-n", "2", "--for", "0.2s", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "nothing to compare" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("allreduce", "--sizes", "big"), "'big' is not a size"),
        (("allreduce", "--sizes", "0"), "not between"),
        (("allreduce", "-n", "0"), "-n 0"),
        (("allreduce", "-n", "1"), "a single rank has nothing to reduce"),
        (("allreduce", "--launcher", "rehearse:"), "needs a cluster file"),
        (("allreduce", "--launcher", "rehearse:absent.toml"), "absent.toml"),
        (("clock", "--for", "-1s"), "not between"),
    ],
)
def test_probes_refuse_what_makes_no_sense(run_cli, tmp_path, arguments, expected):
    done = run_cli("probe", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert expected in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_cluster_file_says_how_many_ranks_where_nobody_else_does(tmp_path):
    (tmp_path / "c.toml").write_text('[cluster]\nhosts = 3\nranks_per_host = 2\nlink = "1 Gbit/s"\n')
    where = f"rehearse:{tmp_path / 'c.toml'}"
    assert [count_ranks(asked, where) for asked in (None, 4)] == [6, 4]
    assert count_ranks(None, "local") == 2
