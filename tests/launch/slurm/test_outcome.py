"""What follows from what Slurm says and what the hosts wrote; only their word proves that all went well."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.launch.host_endings import HostEnding, RankFailure
from allpull.launch.outcome import exit_of
from allpull.launch.slurm.outcome import (
    ENDED_BY_SLURM,
    LASTING,
    JobFacts,
    decide_endings,
    describe_state,
    from_sacct,
    from_scontrol,
)

SAID = (Path(__file__).parent / "golden/scontrol_show_job.txt").read_text("utf-8")
FINE = [HostEnding(host="n1", code=0), HostEnding(host="n2", code=0)]
CRASH = RankFailure(rank=3, host="n2", exit_code=7)


def test_what_slurm_said_is_read() -> None:
    """Recorded from Slurm 22.05, with a job name and paths that look like fields."""
    facts = from_scontrol(SAID)
    assert facts == JobFacts(state="TIMEOUT", reason="TimeLimit", exit_code=3, signal=15, restarts=1, hosts="n[1-2]")
    assert facts.is_over


@pytest.mark.parametrize("text", ["", "slurm_load_jobs error: Invalid job id specified", "JobState=COMPLETED"])
def test_what_is_no_job_is_none(text: str) -> None:
    assert from_scontrol(text) is None


@given(st.text(max_size=200))
def test_any_text_is_a_job_or_none(text: str) -> None:
    for read in (from_scontrol, from_sacct):
        facts = read(text)
        assert facts is None or facts.state.replace("_", "").isalpha()


def test_accounting_is_read() -> None:
    assert from_sacct("FAILED|7:0\n") == JobFacts(state="FAILED", exit_code=7)
    assert from_sacct("Slurm accounting storage is disabled") is None


def test_a_job_that_waits_says_for_what() -> None:
    assert describe_state("7", JobFacts(state="PENDING", reason="BeginTime", restarts=1)) == (
        "Slurm job 7: pending (BeginTime), attempt 2"
    )
    assert describe_state("7", JobFacts(state="RUNNING", hosts="n[1-2]")) == "Slurm job 7: running on n[1-2]"


def test_all_is_well_only_when_every_host_says_so() -> None:
    assert exit_of(decide_endings(JobFacts(state="COMPLETED"), FINE, hosts=2)).code == 0
    for told in ([], FINE[:1]):
        end = exit_of(decide_endings(JobFacts(state="COMPLETED"), told, hosts=2, log_tail=("bash: no such file",)))
        assert end.code == 1
        assert f"{2 - len(told)} of 2 hosts did not report" in (end.reason or "")
        assert end.log_tail == ["bash: no such file"]


def test_the_rank_that_failed_is_named_also_when_another_host_was_ended_before_it_could_speak() -> None:
    told = [HostEnding(host="n2", code=7, failures=(CRASH,))]
    end = exit_of(decide_endings(JobFacts(state="FAILED", exit_code=143), told, hosts=2))
    assert (end.code, end.rank, end.host, end.reason) == (7, 3, "n2", None)


def test_a_script_that_failed_before_the_ranks_passes_its_code_on() -> None:
    end = exit_of(decide_endings(JobFacts(state="FAILED", exit_code=3), [], hosts=2, log_tail=("module: not found",)))
    assert (end.code, end.rank) == (3, None)
    assert "code 3" in end.describe()
    assert end.log_tail == ["module: not found"]


@pytest.mark.parametrize("state", sorted(ENDED_BY_SLURM))
def test_where_slurm_ended_the_job_ranks_are_victims(state: str) -> None:
    """A rank that lost its peer raised an exception; that is not why the job ended."""
    victim = RankFailure(rank=0, host="n1", exit_code=1, exception="RuntimeError: Connection closed", raised_ns=1)
    told = [HostEnding(host="n1", code=1, failures=(victim,)), HostEnding(host="n2", code=143)]
    end = exit_of(decide_endings(JobFacts(state=state, signal=15), told, hosts=2))
    assert end.rank is None
    assert end.exception is None
    assert end.code != 0
    assert end.describe().startswith(ENDED_BY_SLURM[state])
    assert exit_of(decide_endings(JobFacts(state=state, signal=15), [], hosts=2)).code == 143


def test_out_of_memory_keeps_the_rank_that_was_killed() -> None:
    killed = RankFailure(rank=1, host="n1", exit_code=-9)
    told = [HostEnding(host="n1", code=137, failures=(killed,)), HostEnding(host="n2", code=0)]
    assert exit_of(decide_endings(JobFacts(state="OUT_OF_MEMORY"), told, hosts=2)).describe() == (
        "rank 1 on n1 was ended by SIGKILL; Slurm says that the job ran out of memory (slurm.mem)"
    )


@given(
    st.sampled_from(sorted(LASTING)),
    st.integers(0, 255),
    st.lists(st.builds(HostEnding, host=st.sampled_from(["n1", "n2"]), code=st.integers(0, 255)), max_size=2),
)
def test_no_state_but_completion_told_by_all_hosts_is_success(state: str, code: int, told: list[HostEnding]) -> None:
    end = exit_of(decide_endings(JobFacts(state=state, exit_code=code), told, hosts=2))
    good = len(told) == 2 and not any(host.code for host in told) and state in ("COMPLETED", "FAILED")
    assert (end.code == 0) == good


def test_what_a_host_says_of_its_end_is_passed_on_also_where_another_says_nothing() -> None:
    told = [HostEnding(host="n9", code=68, reason="host n9: cannot resolve n9")]
    facts = JobFacts(state="FAILED", exit_code=68)
    assert [host.reason for host in decide_endings(facts, told, hosts=1)] == ["host n9: cannot resolve n9"]
    (host,) = decide_endings(facts, told, hosts=2)
    assert host.reason == (
        "host n9: cannot resolve n9; Slurm says FAILED with code 68, "
        "but 1 of 2 hosts did not report how their ranks ended"
    )
