"""Digests of tensors, which are equal where all their elements are."""

from __future__ import annotations

import sys
from typing import Any, Dict, Iterable, List

PIECE = 1 << 22  # elements mixed at a time: 32 MiB of temporary memory
FACTOR = 0x45D9F3B  # odd, so that it permutes 32-bit numbers (C. Wellons, "Prospecting for hash functions", 2018)
DIGITS = 8  # hexadecimal, of a digest


def digests(tensors: Iterable[Any]) -> str:
    """The digests of ``tensors``, ``DIGITS`` characters each, in their order; the host waits once for each device."""
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        numbers = [digest(tensor) for tensor in tensors]
        places: Dict[Any, List[int]] = {}
        for place, number in enumerate(numbers):
            places.setdefault(number.device, []).append(place)
        values = [0] * len(numbers)
        for of_device in places.values():
            of_place = torch.stack([numbers[place] for place in of_device]).tolist()
            for order, place in enumerate(of_device):
                values[place] = of_place[order]
    return "".join(f"{(value ^ (value >> 32)) & 0xFFFFFFFF:08x}" for value in values)


def digest(tensor: Any) -> Any:
    """The sum of the mixed bits of all elements, modulo 2⁶⁴, as a tensor on the device of ``tensor``.

    Whole numbers add up to the same sum in any order, so memory formats and kernels do not matter. Mixing keeps errors
    of opposite sign in two elements from cancelling out.
    """
    torch: Any = sys.modules["torch"]
    bits = _flat(tensor.detach())
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, bits.numel(), PIECE):
        piece = bits[start : start + PIECE]
        if piece.dtype in (torch.int64, torch.int32):
            piece = (piece ^ (piece >> 16)) * FACTOR  # wraps around
        else:  # 8 and 16 bits
            piece = piece.to(torch.int32) * FACTOR
            piece = piece ^ (piece >> 16)
        total += piece.sum(dtype=torch.int64)
    return total


def in_memory_order(tensor: Any) -> Any:
    """The elements [n] in the order of memory: a copy only where that has gaps."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return tensor.permute(order).reshape(-1)


def _flat(tensor: Any) -> Any:
    """The elements as whole numbers [n], in the order of memory."""
    torch: Any = sys.modules["torch"]
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    flat = in_memory_order(tensor)
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return flat if flat.dtype in (torch.uint8, torch.bool) else flat.view(kinds[flat.element_size()])
