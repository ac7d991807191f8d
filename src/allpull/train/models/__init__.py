"""Networks, one family a file."""

from allpull.registry import Table

MODELS = Table(
    kind="model",
    group="allpull.models",
    builtin={
        "inception_v3": "allpull.train.models.inception:inception_v3",
        "resnet101": "allpull.train.models.resnet_imagenet:resnet101",
        "resnet14": "allpull.train.models.resnet_cifar:resnet14",
        "resnet18": "allpull.train.models.resnet_imagenet:resnet18",
        "resnet20": "allpull.train.models.resnet_cifar:resnet20",
        "resnet34": "allpull.train.models.resnet_imagenet:resnet34",
        "resnet50": "allpull.train.models.resnet_imagenet:resnet50",
        "resnet8": "allpull.train.models.resnet_cifar:resnet8",
        "resnet9": "allpull.train.models.resnet9:resnet9",
        "vgg16": "allpull.train.models.vgg:vgg16",
        "vgg16_bn": "allpull.train.models.vgg:vgg16_bn",
    },
)
"""Name → function (channels, classes, width, norm, and by keyword the options of the family) → module.

Width 0 is the family's own. ``build.build`` passes the keywords that the function accepts.
"""

LIBRARIES = ("torchvision", "timm")
"""Libraries of `LIBRARY:NAME`, if they are installed."""
