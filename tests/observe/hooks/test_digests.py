"""A digest is that of the bits alone: any layout gives the same, any other value another one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from allpull.observe.hooks import digests as of_tensors  # noqa: E402
from allpull.observe.hooks.digests import DIGITS, digests  # noqa: E402

pytestmark = pytest.mark.torch
KINDS = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool", "complex64"]


@pytest.mark.parametrize("kind", KINDS)
def test_one_changed_element_is_another_digest_in_every_type(kind: str) -> None:
    torch.manual_seed(0)
    tensor = (torch.randn(3, 4, 5, 6) * 40).to(getattr(torch, kind))
    other = tensor.clone()
    other[1, 2, 3, 4] = ~other[1, 2, 3, 4] if kind == "bool" else other[1, 2, 3, 4] + 1
    assert digests([tensor]) == digests([tensor.clone()])
    assert digests([tensor]) != digests([other])
    assert len(digests([tensor, other])) == 2 * DIGITS


@pytest.mark.parametrize(
    "laid_out",
    [
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x.permute(3, 1, 0, 2),
        lambda x: torch.stack([x, x])[1],
        lambda x: torch.stack([x, x], dim=-1)[..., 0],  # with gaps
        nn.Parameter,
    ],
)
def test_the_layout_does_not_matter(laid_out) -> None:
    tensor = torch.randn(4, 3, 2, 5)
    assert digests([tensor]) == digests([laid_out(tensor)])


def test_pieces_add_up_and_errors_of_opposite_sign_do_not_cancel_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(1000)
    whole = digests([tensor])
    monkeypatch.setattr(of_tensors, "PIECE", 64)
    assert digests([tensor]) == whole
    other = tensor.clone()
    bits = other.view(torch.int32)
    bits[3] += 1
    bits[7] -= 1
    assert digests([other]) != whole
    assert digests([]) == ""
    assert digests([torch.zeros(0), torch.tensor(1.0)])[:DIGITS] == "0" * DIGITS
