"""Ranks agree upon NCCL where each has a GPU of its own, upon Gloo elsewhere, and say what cannot be had."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributed as dist

from allpull import backend
from allpull.backend import Census, choose_backend, gloo_remark, gpu_name, join, own_device, take_census
from allpull.errors import AllpullError, BadInput, MissingPart

pytestmark = pytest.mark.torch


def census(ranks: int, on_gpu: int, own_gpu: int, fit: int) -> Census:
    return Census(ranks=ranks, on_gpu=on_gpu, own_gpu=own_gpu, fit=fit)


CPUS = census(4, 0, 0, 0)
OWN = census(4, 4, 4, 4)
PAIRS = census(4, 4, 2, 2)  # two ranks on each of two GPUs
LACKING = census(4, 2, 2, 2)  # two hosts, of which one has no GPUs
WITHOUT_NCCL = census(4, 4, 4, 0)


@pytest.mark.parametrize(
    ("found", "auto", "why"),
    [
        (CPUS, "gloo", ""),
        (OWN, "nccl", ""),
        (PAIRS, "gloo", "4 ranks share 2 GPUs"),
        (census(2, 2, 1, 1), "gloo", "2 ranks share 1 GPU"),
        (LACKING, "gloo", "only 2 of 4 ranks have a GPU"),
        (WITHOUT_NCCL, "gloo", "torch was built without NCCL"),
    ],
)
def test_auto_is_nccl_where_each_rank_has_a_gpu_of_its_own(found: Census, auto: str, why: str) -> None:
    assert choose_backend("auto", found) == auto
    said = gloo_remark("auto", auto, found)
    assert said.endswith(why)
    assert bool(said) == bool(why)


@pytest.mark.parametrize("found", [CPUS, OWN, PAIRS, LACKING, WITHOUT_NCCL])
def test_gloo_is_to_be_had_everywhere(found: Census) -> None:
    assert choose_backend("gloo", found) == "gloo"


@pytest.mark.parametrize(
    ("found", "kind", "says"),
    [
        (CPUS, MissingPart, "4 of 4 ranks have none"),
        (LACKING, MissingPart, "2 of 4 ranks have none"),
        (PAIRS, BadInput, "4 ranks share 2 GPUs, and NCCL refuses two ranks on one GPU"),
        (WITHOUT_NCCL, MissingPart, "torch was built without NCCL"),
    ],
)
def test_nccl_is_refused_where_it_cannot_work(found: Census, kind: type[AllpullError], says: str) -> None:
    with pytest.raises(kind, match=says) as caught:
        choose_backend("nccl", found)
    assert "parallel.backend=auto" in caught.value.hint
    assert choose_backend("nccl", OWN) == "nccl"


def test_a_torch_without_gloo_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    with pytest.raises(MissingPart, match="built without it") as caught:
        choose_backend("auto", CPUS)
    assert caught.value.hint
    assert choose_backend("auto", OWN) == "nccl"
    assert choose_backend("auto", census(1, 0, 0, 0)) == "gloo"  # which a rank alone does not use


@settings(max_examples=25, deadline=None)
@given(gpus=st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=1, max_size=6), can_nccl=st.booleans())
def test_all_ranks_count_the_same(gpus: list[str], can_nccl: bool) -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor(len(gpus)) as ranks:
        found = list(ranks.map(lambda gpu: take_census(store, len(gpus), gpu, can_nccl=can_nccl), gpus))
    different = len({*gpus} - {""})
    expected = census(len(gpus), len([gpu for gpu in gpus if gpu]), different, different * can_nccl)
    assert found == [expected] * len(gpus)


class Gpus:
    """So many GPUs, which do nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *uuids: str | None) -> None:
        self.current: list[torch.device] = []
        properties = [SimpleNamespace(uuid=uuid) if uuid else SimpleNamespace() for uuid in uuids]
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(uuids))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(uuids))
        monkeypatch.setattr(torch.cuda, "set_device", self.current.append)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties[device.index])


@pytest.mark.parametrize(
    ("gpus", "devices"),
    [
        (0, ["cpu"] * 4),
        (1, ["cuda:0"] * 4),  # one for all, or each rank is shown its own alone
        (2, ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]),
        (4, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
    ],
)
def test_gpus_of_a_host_are_dealt_out_in_turn(monkeypatch: pytest.MonkeyPatch, gpus: int, devices: list[str]) -> None:
    present = Gpus(monkeypatch, *(str(number) for number in range(gpus)))
    found = [own_device(local_rank) for local_rank in range(4)]
    assert [str(device) for device in found] == devices
    assert present.current == (found if gpus else [])


def test_a_gpu_is_told_from_others_also_where_it_has_no_number_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    Gpus(monkeypatch, "GPU-1", "GPU-2")
    assert (gpu_name(first), gpu_name(second)) == ("GPU-1", "GPU-2")
    Gpus(monkeypatch, None, None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    shown = {gpu_name(first), gpu_name(second)}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    shown.add(gpu_name(first))  # another rank of this host, which is shown its own alone
    monkeypatch.setattr(backend.socket, "gethostname", lambda: "another")
    shown.add(gpu_name(first))
    assert len(shown) == 4
    assert gpu_name(torch.device("cpu")) == ""


def test_a_rank_alone_joins_nobody_and_is_refused_nccl_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    Gpus(monkeypatch)
    place = join("auto")
    assert (place.rank, place.ranks, str(place.device), place.backend, place.remark) == (0, 1, "cpu", "", "")
    with pytest.raises(MissingPart, match="1 of 1 ranks have none"):
        join("nccl")
    Gpus(monkeypatch, "GPU-1")
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert [str(join(asked).device) for asked in ("auto", "nccl", "gloo")] == ["cuda:0"] * 3
