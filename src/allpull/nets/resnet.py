"""ResNets for ImageNet: He, Zhang, Ren & Sun, "Deep Residual Learning for Image Recognition" (2015), table 1.

Version 1.5, as in torchvision: a bottleneck that halves the image does so in its 3×3 convolution, not in the first.
"""

from __future__ import annotations

from allpull.nets.net import Draft, Map, Net

IMAGE = 224
CLASSES = 1000


def resnet18() -> Net:
    """18 layers: 11.7 M parameters, 1.81 G multiply-adds."""
    return _resnet("resnet18", (2, 2, 2, 2), bottleneck=False)


def resnet34() -> Net:
    """34 layers: 21.8 M parameters, 3.66 G multiply-adds."""
    return _resnet("resnet34", (3, 4, 6, 3), bottleneck=False)


def resnet50() -> Net:
    """50 layers: 25.6 M parameters, 4.09 G multiply-adds."""
    return _resnet("resnet50", (3, 4, 6, 3), bottleneck=True)


def resnet101() -> Net:
    """101 layers: 44.5 M parameters, 7.80 G multiply-adds."""
    return _resnet("resnet101", (3, 4, 23, 3), bottleneck=True)


def _resnet(name: str, blocks: tuple[int, int, int, int], *, bottleneck: bool) -> Net:
    draft = Draft()
    x = Map(channels=3, height=IMAGE, width=IMAGE)
    x = draft.norm("bn1", draft.conv("conv1", x, 64, 7, stride=2, padding=3))
    x = x.pooled(3, stride=2, padding=1)
    for stage, count in enumerate(blocks):
        for block in range(count):
            place = f"layer{stage + 1}.{block}"
            stride = 2 if stage > 0 and block == 0 else 1
            x = (_bottleneck if bottleneck else _basic)(draft, place, x, 64 << stage, stride)
    draft.linear("fc", x.channels, CLASSES)
    return draft.finish(name, IMAGE)


def _basic(draft: Draft, place: str, x: Map, width: int, stride: int) -> Map:
    y = draft.norm(f"{place}.bn1", draft.conv(f"{place}.conv1", x, width, 3, stride=stride, padding=1))
    y = draft.norm(f"{place}.bn2", draft.conv(f"{place}.conv2", y, width, 3, padding=1))
    _shortcut(draft, place, x, y, stride)
    return y


def _bottleneck(draft: Draft, place: str, x: Map, width: int, stride: int) -> Map:
    y = draft.norm(f"{place}.bn1", draft.conv(f"{place}.conv1", x, width, 1))
    y = draft.norm(f"{place}.bn2", draft.conv(f"{place}.conv2", y, width, 3, stride=stride, padding=1))
    y = draft.norm(f"{place}.bn3", draft.conv(f"{place}.conv3", y, 4 * width, 1))
    _shortcut(draft, place, x, y, stride)
    return y


def _shortcut(draft: Draft, place: str, x: Map, y: Map, stride: int) -> None:
    if x != y:
        z = draft.conv(f"{place}.downsample.0", x, y.channels, 1, stride=stride)
        draft.norm(f"{place}.downsample.1", z)
