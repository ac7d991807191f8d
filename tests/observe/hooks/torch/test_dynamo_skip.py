"""What keeps the compiler from our own functions leaves it the networks of the reference trainer."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from allpull import marks
from allpull.observe.hooks.torch.dynamo_skip import skip_our_code
from allpull.train.models import resnet_cifar

pytestmark = pytest.mark.torch


def test_words_are_left_uncompiled_and_networks_are_not():
    left: set[object] = set()
    skip_our_code(left.add)
    assert marks.remark.__code__ in left
    assert resnet_cifar.ResNet.forward.__code__ not in left
