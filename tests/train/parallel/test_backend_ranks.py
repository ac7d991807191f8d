"""Two ranks join by the backend that their devices allow, GPUs being pretended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.ranks, pytest.mark.slow]


def test_two_ranks_join_as_their_gpus_allow(results_of_two_ranks: Callable[[str], list[dict[str, Any]]]) -> None:
    first, second = results_of_two_ranks("backend_ranks.py")
    on_cpu = {"device": "cpu", "backend": "gloo", "total": 2.0, "all": True, "remarks": []}
    on_cpu["metrics"] = {"backend_is_nccl": 0.0}
    for name in ("cpu", "cpu gloo", "cpu fsdp"):
        assert first[name] == second[name] == on_cpu
    why = "parallel.backend: ranks exchange through Gloo, via the CPU: 2 ranks share 1 GPU"
    for name in ("shared", "shared gloo"):
        assert first[name] == {**on_cpu, "device": "cuda:0", "remarks": [why]}
        assert second[name] == {**on_cpu, "device": "cuda:0"}
    assert first["own gloo"] == {**on_cpu, "device": "cuda:0"}
    assert second["own gloo"] == {**on_cpu, "device": "cuda:1"}
    for found in (first, second):
        assert found["cpu nccl"]["error"] == "MissingPart"
        assert found["shared nccl"]["error"] == "BadInput"
        assert found["shared fsdp"]["error"] == "MissingPart"
        assert "parallel.strategy=ddp" in found["shared fsdp"]["hint"]
        assert found["one of two fsdp"]["error"] == "MissingPart", "one rank alone would be waited for"
        assert found["probe"]["device"] == "cuda:0"
        assert found["probe without a device"]["device"] == "cpu"
        assert found["probe"]["total"] == found["probe without a device"]["total"] == 2.0
