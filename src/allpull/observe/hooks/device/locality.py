"""How near the CPUs of a rank are to its accelerator: the same memory node, the same socket, or another one.

Linux knows the memory node of each PCI device and the distances between nodes (ACPI SLIT: 10 is the node itself, 20 and
more usually another socket). Standard library only.
"""

from __future__ import annotations

from typing import Any, Dict, Optional

from ....kernel import Tree, cpu_list
from ...affinity import bound_to

MAX_NAME = 200  # characters


def locality(properties: Any, root: str = "/") -> Optional[Dict[str, Any]]:
    """The accelerator with these ``properties`` of torch, its memory node and the distance of this process to it.

    None where torch does not say where the device is, or the kernel does not know its node. ``distance`` is that of the
    nearest node on which the process may run.
    """
    places = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    domain, bus, device = (place if isinstance(place, int) else None for place in places)
    if domain is None or bus is None or device is None:
        return None
    tree = Tree(root)
    bus_id = f"{domain:04x}:{bus:02x}:{device:02x}.0"  # as torch.numa.binding spells it
    node = tree.number(f"sys/bus/pci/devices/{bus_id}/numa_node")
    cpus = bound_to()
    if node is None or node < 0 or cpus is None:
        return None
    distances = (tree.text(f"sys/devices/system/node/node{node:.0f}/distance") or "").split()
    own = cpu_list(cpus)
    reached = []
    for name in tree.names("sys/devices/system/node"):
        number = name[4:]
        if name.startswith("node") and number.isdigit() and int(number) < len(distances):
            near = cpu_list(tree.text(f"sys/devices/system/node/{name}/cpulist") or "")
            if near & own and distances[int(number)].isdigit():
                reached.append(int(distances[int(number)]))
    near_cpus = tree.text(f"sys/devices/system/node/node{node:.0f}/cpulist")
    if not reached or not near_cpus:
        return None
    return {
        "name": str(getattr(properties, "name", ""))[:MAX_NAME] or None,
        "bus_id": bus_id,
        "node": int(node),
        "cpus": cpus,
        "near_cpus": near_cpus,
        "distance": min(reached),
    }
