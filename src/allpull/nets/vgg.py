"""VGG: Simonyan & Zisserman, "Very Deep Convolutional Networks" (2014), table 1, column D, without normalisation.

Nine tenths of its parameters are in three linear layers, whose gradients are ready first: the classic
test of an all-reduce.
"""

from __future__ import annotations

from allpull.nets.net import Draft, Map, Net

IMAGE = 224
CLASSES = 1000
POOL = 0
PLAN = (64, 64, POOL, 128, 128, POOL, 256, 256, 256, POOL, 512, 512, 512, POOL, 512, 512, 512, POOL)


def vgg16() -> Net:
    """16 layers: 138 M parameters, 15.5 G multiply-adds."""
    draft = Draft()
    x = Map(channels=3, height=IMAGE, width=IMAGE)
    place = 0  # in torchvision's ``features``, where an activation follows each convolution
    for channels in PLAN:
        if channels == POOL:
            x = x.pooled(2, stride=2)
            place += 1
        else:
            x = draft.conv(f"features.{place}", x, channels, 3, padding=1, bias=True)
            place += 2
    features = draft.linear("classifier.0", x.channels * x.height * x.width, 4096)
    features = draft.linear("classifier.3", features, 4096)
    draft.linear("classifier.6", features, CLASSES)
    return draft.finish("vgg16", IMAGE)
