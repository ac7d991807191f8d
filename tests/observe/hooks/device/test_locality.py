"""How near a rank is to its accelerator, by a made-up /sys of two sockets with two memory nodes each."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from allpull.observe.hooks.device import locality as of
from allpull.observe.hooks.device.locality import locality

DISTANCES = ("10 12 32 32", "12 10 32 32", "32 32 10 12", "32 32 12 10")
GPU = SimpleNamespace(name="H100", pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for node, distances in enumerate(DISTANCES):
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{4 * node}-{4 * node + 3}\n")
        (folder / "distance").write_text(f"{distances}\n")
    device = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    return tmp_path


@pytest.mark.parametrize(
    ("cpus", "distance"), [("4-5", 10), ("0-3", 12), ("8-11", 32), ("12", 32), ("0-15", 10), ("3,8-11", 12)]
)
def test_the_nearest_of_its_cpus_counts(root: Path, monkeypatch: pytest.MonkeyPatch, cpus: str, distance: int) -> None:
    monkeypatch.setattr(of, "bound_to", lambda: cpus)
    near = locality(GPU, str(root))
    assert near == {
        "name": "H100",
        "bus_id": "0000:3b:00.0",
        "node": 1,
        "cpus": cpus,
        "near_cpus": "4-7",
        "distance": distance,
    }


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param(SimpleNamespace(name="H100"), id="an older torch"),
        pytest.param(SimpleNamespace(name="H100", pci_domain_id=0, pci_bus_id=1, pci_device_id=0), id="another device"),
        pytest.param(SimpleNamespace(name="H100", pci_domain_id="0", pci_bus_id=1, pci_device_id=0), id="no numbers"),
    ],
)
def test_what_is_not_known_is_not_guessed(root: Path, properties: Any) -> None:
    assert locality(properties, str(root)) is None


def test_a_machine_without_memory_nodes_has_no_distance(root: Path) -> None:
    (root / "sys/bus/pci/devices/0000:3b:00.0/numa_node").write_text("-1\n")
    assert locality(GPU, str(root)) is None
