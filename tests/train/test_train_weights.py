"""Weights of a file: what has torchvision's layout fits, whatever stands around it; all else is one clear error."""

from __future__ import annotations

from collections import OrderedDict

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from allpull.errors import BadInput  # noqa: E402
from allpull.load.feed import open_feed  # noqa: E402
from allpull.schema.spec import RunSpec  # noqa: E402
from allpull.schema.trainspec import DataSpec, ModelSpec, TrainSpec  # noqa: E402
from allpull.train.learner import learner_of  # noqa: E402
from allpull.train.models.build import build  # noqa: E402
from allpull.train.models.weights import begin_with  # noqa: E402
from allpull.train.ranks import Ranks  # noqa: E402

pytestmark = pytest.mark.torch
ALONE = Ranks(rank=0, ranks=1, device=torch.device("cpu"))


def network(seed, *, classes=10, name="resnet18", width=4):
    torch.manual_seed(seed)
    return build(ModelSpec(name=name, width=width), channels=3, classes=classes, pixels=(32, 32))


def same(one, other):
    ours, theirs = one.state_dict(), other.state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    "around",
    [
        dict,
        lambda state: {"state_dict": OrderedDict(state), "epoch": 3},
        lambda state: {"model": {f"module.{name}": value for name, value in state.items()}, "optimizer": {}},
        lambda state: {f"_orig_mod.module.{name}": value.half().float() for name, value in state.items()},
        lambda state: {name: value for name, value in state.items() if "num_batches" not in name},
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_a_network_begins_with_them(tmp_path, around, zipped):
    one, other = network(1), network(2)
    for parameter in one.parameters():
        parameter.data = parameter.data.half().float()
    torch.save(around(one.state_dict()), tmp_path / "w.pt", _use_new_zipfile_serialization=zipped)
    assert not same(one, other)
    assert begin_with(other, tmp_path / "w.pt", classes=10, new_head=False) == []
    assert same(one, other)


@pytest.mark.parametrize("name", ["resnet18", "vgg16", "vgg16_bn"])
def test_a_head_for_other_classes_is_left_out_where_that_is_asked_for(tmp_path, name):
    one, other = (network(seed, name=name, classes=classes, width=2) for seed, classes in ((1, 12), (2, 7)))
    torch.save(one.state_dict(), tmp_path / "w.pt")
    before = {key: value.clone() for key, value in other.state_dict().items()}
    with pytest.raises(BadInput, match="is for 12 classes, and the data have 7") as refused:
        begin_with(other, tmp_path / "w.pt", classes=7, new_head=False)
    assert "model.new_head=true" in refused.value.hint
    assert all(torch.equal(value, before[key]) for key, value in other.state_dict().items())
    heads = begin_with(other, tmp_path / "w.pt", classes=7, new_head=True)
    weights, biases = heads[::2], heads[1::2]
    assert [name.removesuffix(".weight") for name in weights] == [name.removesuffix(".bias") for name in biases]
    for key, value in other.state_dict().items():
        assert torch.equal(value, before[key] if key in heads else one.state_dict()[key])


def test_the_auxiliary_head_in_torchvisions_inception_is_no_obstacle(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.nn.init, "trunc_normal_", lambda *_: None)  # takes seconds, and is written over
    model = build(ModelSpec(name="inception_v3"), channels=3, classes=10, pixels=(75, 75))
    one_number = {
        name: torch.tensor(7).to(value.dtype).expand(value.shape) for name, value in model.state_dict().items()
    }
    auxiliary = {"AuxLogits.conv0.conv.weight": torch.ones(1), "AuxLogits.fc.bias": torch.ones(1000)}
    torch.save(one_number | auxiliary, tmp_path / "w.pt")
    assert begin_with(model, tmp_path / "w.pt", classes=10, new_head=False) == []
    assert all((value == 7).all() for value in model.state_dict().values())
    torch.save(one_number | {"AuxHead.fc.bias": torch.ones(10)}, tmp_path / "w.pt")
    with pytest.raises(BadInput, match=r"it has besides AuxHead\.fc\.bias"):
        begin_with(model, tmp_path / "w.pt", classes=10, new_head=False)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: network(1, name="resnet34").state_dict(), "it has besides layer1.2.conv1.weight, .* and [0-9]+ more"),
        (lambda: network(1, width=8).state_dict(), r"of other shapes are conv1.weight \[8, 3, 7, 7\], here \[4,"),
        (lambda: {"conv1.weight": torch.zeros(4, 3, 7, 7)}, "it lacks bn1.weight"),
        (lambda: {"a": 1}, "a is no tensor"),
        (dict, "holds no weights"),
        (lambda: [1], "holds no weights"),
        (lambda: {"a": RuntimeError()}, "cannot be read"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_clear_error(tmp_path, made, words):
    torch.save(made(), tmp_path / "w.pt")
    with pytest.raises(BadInput, match=words) as refused:
        begin_with(network(2), tmp_path / "w.pt", classes=10, new_head=False)
    assert refused.value.hint


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04", b"{}", bytes(range(256))])
def test_no_file_of_tensors_is_one_clear_error(tmp_path, content):
    if content is not None:
        (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(BadInput, match=r"model.weights: .*w.pt cannot be read"):
        begin_with(network(2), tmp_path / "w.pt", classes=10, new_head=True)


def test_a_training_begins_with_them_and_says_what_it_left_out(tmp_path, heard):
    one = build(ModelSpec(), channels=1, classes=11)
    torch.save(one.state_dict(), tmp_path / "w.pt")
    spec = RunSpec(
        data=DataSpec(name="digits"),
        model=ModelSpec(weights=str(tmp_path / "w.pt"), new_head=True),
        train=TrainSpec(batch=8),
    )
    facts = open_feed(spec.data, rank=0, ranks=1, global_batch=8, seed=0, epochs=1).facts
    learner = learner_of(spec, facts, ALONE)
    ours, theirs = learner.shared.model.state_dict(), one.state_dict()
    assert {name for name in ours if not torch.equal(ours[name], theirs[name])} == {"head.weight", "head.bias"}
    assert heard == ["model.new_head: head.weight, head.bias begin with weights of chance"]
