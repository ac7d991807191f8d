"""Inception-v3: Szegedy et al., "Rethinking the Inception Architecture" (2015), in torchvision's layout.

Without the auxiliary classifier, which DDP would reduce too where it is trained (3.3 M parameters more).
"""

from __future__ import annotations

from allpull.nets.net import Draft, Map, Net, Pair

IMAGE = 299
CLASSES = 1000
ROW: Pair = (1, 7)
COLUMN: Pair = (7, 1)


def inception_v3() -> Net:
    """48 layers deep: 23.8 M parameters, 5.71 G multiply-adds."""
    draft = Draft()
    x = Map(channels=3, height=IMAGE, width=IMAGE)
    x = _unit(draft, "Conv2d_1a_3x3", x, 32, 3, stride=2)
    x = _unit(draft, "Conv2d_2a_3x3", x, 32, 3)
    x = _unit(draft, "Conv2d_2b_3x3", x, 64, 3, same=True)
    x = x.pooled(3, stride=2)
    x = _unit(draft, "Conv2d_3b_1x1", x, 80, 1)
    x = _unit(draft, "Conv2d_4a_3x3", x, 192, 3)
    x = x.pooled(3, stride=2)
    x = _mixed_35(draft, "Mixed_5b", x, pool=32)
    x = _mixed_35(draft, "Mixed_5c", x, pool=64)
    x = _mixed_35(draft, "Mixed_5d", x, pool=64)
    x = _reduce_35(draft, "Mixed_6a", x)
    for place, width in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        x = _mixed_17(draft, place, x, width)
    x = _reduce_17(draft, "Mixed_7a", x)
    x = _mixed_8(draft, "Mixed_7b", x)
    x = _mixed_8(draft, "Mixed_7c", x)
    draft.linear("fc", x.channels, CLASSES)
    return draft.finish("inception_v3", IMAGE)


def _unit(
    draft: Draft, place: str, x: Map, channels: int, kernel: int | Pair, *, stride: int = 1, same: bool = False
) -> Map:
    """A convolution and its normalisation; ``same`` keeps rows and columns."""
    rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (rows // 2, columns // 2) if same else 0
    y = draft.conv(f"{place}.conv", x, channels, (rows, columns), stride=stride, padding=padding)
    return draft.norm(f"{place}.bn", y)


def _joined(first: Map, *branches: Map) -> Map:
    """Parallel branches, concatenated: their channels add up."""
    channels = first.channels + sum(other.channels for other in branches)
    return Map(channels=channels, height=first.height, width=first.width)


def _mixed_35(draft: Draft, place: str, x: Map, pool: int) -> Map:
    a = _unit(draft, f"{place}.branch1x1", x, 64, 1)
    b = _unit(draft, f"{place}.branch5x5_1", x, 48, 1)
    b = _unit(draft, f"{place}.branch5x5_2", b, 64, 5, same=True)
    c = _unit(draft, f"{place}.branch3x3dbl_1", x, 64, 1)
    c = _unit(draft, f"{place}.branch3x3dbl_2", c, 96, 3, same=True)
    c = _unit(draft, f"{place}.branch3x3dbl_3", c, 96, 3, same=True)
    d = _unit(draft, f"{place}.branch_pool", x, pool, 1)
    return _joined(a, b, c, d)


def _reduce_35(draft: Draft, place: str, x: Map) -> Map:
    a = _unit(draft, f"{place}.branch3x3", x, 384, 3, stride=2)
    b = _unit(draft, f"{place}.branch3x3dbl_1", x, 64, 1)
    b = _unit(draft, f"{place}.branch3x3dbl_2", b, 96, 3, same=True)
    b = _unit(draft, f"{place}.branch3x3dbl_3", b, 96, 3, stride=2)
    return _joined(a, b, x.pooled(3, stride=2))


def _mixed_17(draft: Draft, place: str, x: Map, width: int) -> Map:
    a = _unit(draft, f"{place}.branch1x1", x, 192, 1)
    b = _unit(draft, f"{place}.branch7x7_1", x, width, 1)
    b = _unit(draft, f"{place}.branch7x7_2", b, width, ROW, same=True)
    b = _unit(draft, f"{place}.branch7x7_3", b, 192, COLUMN, same=True)
    c = _unit(draft, f"{place}.branch7x7dbl_1", x, width, 1)
    c = _unit(draft, f"{place}.branch7x7dbl_2", c, width, COLUMN, same=True)
    c = _unit(draft, f"{place}.branch7x7dbl_3", c, width, ROW, same=True)
    c = _unit(draft, f"{place}.branch7x7dbl_4", c, width, COLUMN, same=True)
    c = _unit(draft, f"{place}.branch7x7dbl_5", c, 192, ROW, same=True)
    d = _unit(draft, f"{place}.branch_pool", x, 192, 1)
    return _joined(a, b, c, d)


def _reduce_17(draft: Draft, place: str, x: Map) -> Map:
    a = _unit(draft, f"{place}.branch3x3_1", x, 192, 1)
    a = _unit(draft, f"{place}.branch3x3_2", a, 320, 3, stride=2)
    b = _unit(draft, f"{place}.branch7x7x3_1", x, 192, 1)
    b = _unit(draft, f"{place}.branch7x7x3_2", b, 192, ROW, same=True)
    b = _unit(draft, f"{place}.branch7x7x3_3", b, 192, COLUMN, same=True)
    b = _unit(draft, f"{place}.branch7x7x3_4", b, 192, 3, stride=2)
    return _joined(a, b, x.pooled(3, stride=2))


def _mixed_8(draft: Draft, place: str, x: Map) -> Map:
    a = _unit(draft, f"{place}.branch1x1", x, 320, 1)
    b = _unit(draft, f"{place}.branch3x3_1", x, 384, 1)
    b1 = _unit(draft, f"{place}.branch3x3_2a", b, 384, (1, 3), same=True)
    b2 = _unit(draft, f"{place}.branch3x3_2b", b, 384, (3, 1), same=True)
    c = _unit(draft, f"{place}.branch3x3dbl_1", x, 448, 1)
    c = _unit(draft, f"{place}.branch3x3dbl_2", c, 384, 3, same=True)
    c1 = _unit(draft, f"{place}.branch3x3dbl_3a", c, 384, (1, 3), same=True)
    c2 = _unit(draft, f"{place}.branch3x3dbl_3b", c, 384, (3, 1), same=True)
    d = _unit(draft, f"{place}.branch_pool", x, 192, 1)
    return _joined(a, b1, b2, c1, c2, d)
