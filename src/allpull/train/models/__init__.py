"""Networks, one family a file."""

from allpull.registry import Table

MODELS = Table(
    kind="model",
    group="allpull.models",
    builtin={
        "resnet8": "allpull.train.models.resnet:resnet8",
        "resnet14": "allpull.train.models.resnet:resnet14",
        "resnet20": "allpull.train.models.resnet:resnet20",
    },
)
"""Name → function (channels, classes, width, norm) → module."""
