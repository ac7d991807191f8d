"""Models, optimizer, schedule, evaluation and checkpoints, each by itself."""

from __future__ import annotations

import dataclasses
import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import numpy as np  # noqa: E402

from allpull.errors import BadInput  # noqa: E402
from allpull.load.dataset import Part  # noqa: E402
from allpull.schema.spec import TrainSpec  # noqa: E402
from allpull.train import checkpoint  # noqa: E402
from allpull.train.evaluate import evaluate  # noqa: E402
from allpull.train.models import MODELS  # noqa: E402
from allpull.train.models.count import trainable_parameters  # noqa: E402
from allpull.train.optimise import learning_rate, sgd, split_by_decay  # noqa: E402
from allpull.train.ranks import Ranks  # noqa: E402

CUT = checkpoint.Cut(global_batch=64, samples=1437, seed=0, dtype="float32")
ALONE = Ranks(rank=0, ranks=1, device=torch.device("cpu"))


def test_resnet20_has_the_published_number_of_parameters():
    """He et al. 2015 give 0.27 M for CIFAR-10; with projection shortcuts (option B) it is 272,474."""
    assert trainable_parameters("resnet20", channels=3) == 272_474


@pytest.mark.parametrize("name", ["resnet8", "resnet14", "resnet20"])
@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_every_model_for_small_images_gives_logits_for_the_smallest(name, norm):
    model = MODELS.load(name)(1, 10, 4, norm)
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_no_norm_and_no_bias_is_decayed():
    """Also those of the shortcuts, which a filter by name misses."""
    model = MODELS.load("resnet8")(1, 10, 16, "batch")
    decayed, free = split_by_decay(model)
    assert all(parameter.dim() > 1 for parameter in decayed)
    assert all(parameter.dim() == 1 for parameter in free)
    assert len(decayed) + len(free) == len(list(model.parameters()))
    groups = sgd(model, TrainSpec()).param_groups
    assert [group["weight_decay"] for group in groups] == [1e-4, 0.0]
    assert {group["momentum"] for group in groups} == {0.9}


def test_warm_up_is_linear_and_ends_at_the_scaled_rate():
    """Goyal et al. 2017: learning rate × global batch / 256."""
    spec = TrainSpec(epochs=90, lr=0.1, warmup_epochs=5.0, schedule="step", step_epochs=30.0)
    rates = [learning_rate(spec, global_batch=8192, step=step, steps_per_epoch=156) for step in range(5 * 156)]
    assert rates[-1] == pytest.approx(3.2)
    assert np.diff(rates) == pytest.approx(np.full(5 * 156 - 1, rates[0]))


@pytest.mark.parametrize(("epoch", "factor"), [(29, 1.0), (30, 0.1), (59, 0.1), (60, 0.01), (89, 0.01)])
def test_step_schedule_divides_by_ten_each_thirty_epochs(epoch, factor):
    spec = TrainSpec(epochs=90, lr=0.1, warmup_epochs=5.0, schedule="step", step_epochs=30.0)
    rate = learning_rate(spec, global_batch=256, step=epoch * 10, steps_per_epoch=10)
    assert rate == pytest.approx(0.1 * factor)


def test_cosine_ends_near_nothing_and_never_rises():
    spec = TrainSpec(epochs=4, lr=0.1, warmup_epochs=0.0)
    rates = [learning_rate(spec, global_batch=256, step=step, steps_per_epoch=25) for step in range(100)]
    assert rates[0] == 0.1
    assert rates[-1] < 1e-4
    assert all(later <= earlier for earlier, later in zip(rates, rates[1:], strict=False))
    assert rates[50] == pytest.approx(0.1 * 0.5 * (1 + math.cos(math.pi / 2)))


class Guess(torch.nn.Module):
    """Says class k for an image whose first pixel is k."""

    def forward(self, images):
        return torch.nn.functional.one_hot(images[:, 0, 0, 0].long(), 10).float()


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_evaluation_counts_each_sample_once_whatever_the_batch(size):
    labels = np.arange(7) % 10
    images = np.zeros((7, 8, 8, 1), np.uint8)
    images[:, 0, 0, 0] = [0, 1, 2, 3, 9, 9, 9]  # right four times of seven

    def to_tensors(batch):
        return torch.from_numpy(batch.images).permute(0, 3, 1, 2), torch.from_numpy(batch.labels)

    score = evaluate(Guess(), Part(images=images, labels=labels), ALONE, size=size, to_tensors=to_tensors)
    assert (score.samples, score.top1) == (7, 4 / 7)
    assert score.top5 >= score.top1


def _trained():
    torch.manual_seed(0)
    model = MODELS.load("resnet8")(1, 10, 4, "batch")
    optimizer = sgd(model, TrainSpec())
    model(torch.randn(4, 1, 8, 8)).sum().backward()
    optimizer.step()
    return model, optimizer


def _save(folder, step, model, optimizer, keep=2):
    progress = checkpoint.Progress(step=step, epoch=1, in_epoch=2, losses=[0.5])
    checkpoint.save(folder / "checkpoints", progress, model, optimizer, ALONE, cut=CUT, keep=keep)


def test_a_torn_checkpoint_is_passed_over_for_the_one_before(tmp_path):
    model, optimizer = _trained()
    _save(tmp_path, 10, model, optimizer)
    _save(tmp_path, 20, model, optimizer)
    newest = tmp_path / "checkpoints/step-0000000020.pt"
    newest.write_bytes(newest.read_bytes()[:1000])
    other = MODELS.load("resnet8")(1, 10, 4, "batch")
    progress = checkpoint.restore(tmp_path, other, sgd(other, TrainSpec()), ALONE, cut=CUT)
    assert (progress.step, progress.epoch, progress.in_epoch, progress.losses) == (10, 1, 2, [0.5])
    for mine, theirs in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


def test_only_the_newest_checkpoints_are_kept_and_nothing_half_written(tmp_path):
    model, optimizer = _trained()
    for step in (1, 2, 3, 4):
        _save(tmp_path, step, model, optimizer, keep=3)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == [f"step-000000000{step}.pt" for step in (2, 3, 4)]


def test_a_checkpoint_that_would_run_code_is_not_loaded(tmp_path):
    """Pickle can name any function; weights_only refuses."""
    (tmp_path / "checkpoints").mkdir()
    torch.save({"format": 1, "model": Guess()}, tmp_path / "checkpoints/step-0000000001.pt")
    model, optimizer = _trained()
    with pytest.raises(BadInput, match="cannot be read"):
        checkpoint.restore(tmp_path, model, optimizer, ALONE, cut=CUT)


def test_a_checkpoint_of_another_network_says_so(tmp_path):
    model, optimizer = _trained()
    _save(tmp_path, 1, model, optimizer)
    other = MODELS.load("resnet8")(1, 10, 8, "batch")
    with pytest.raises(BadInput, match="another network"):
        checkpoint.restore(tmp_path, other, sgd(other, TrainSpec()), ALONE, cut=CUT)


def test_resuming_from_nothing_says_so(tmp_path):
    model, optimizer = _trained()
    with pytest.raises(BadInput, match="no checkpoint"):
        checkpoint.restore(tmp_path, model, optimizer, ALONE, cut=CUT)


@pytest.mark.parametrize(
    ("changed", "words"),
    [("global_batch", "global batch"), ("samples", "samples"), ("seed", "seed"), ("dtype", "arithmetic")],
)
def test_resuming_within_an_epoch_refuses_another_order_of_samples(tmp_path, changed, words):
    model, optimizer = _trained()
    _save(tmp_path, 1, model, optimizer)
    other = dataclasses.replace(CUT, **{changed: "float64" if changed == "dtype" else 7})
    with pytest.raises(BadInput, match=f"within an epoch of {words}"):
        checkpoint.restore(tmp_path, model, optimizer, ALONE, cut=other)


@pytest.mark.parametrize(
    "broken", [{"step": "1"}, {"buffers": None}, {"cut": {}}, {"in_epoch": -1}, {"losses": [None]}]
)
def test_a_checkpoint_that_lacks_a_part_is_no_checkpoint(tmp_path, broken):
    model, optimizer = _trained()
    _save(tmp_path, 1, model, optimizer)
    (path,) = (tmp_path / "checkpoints").iterdir()
    torch.save({**torch.load(path, weights_only=True), **broken}, path)
    with pytest.raises(BadInput, match="no checkpoint of this trainer"):
        checkpoint.restore(tmp_path, model, optimizer, ALONE, cut=CUT)


def test_a_checkpoint_that_does_not_fit_the_disk_is_one_clear_error(tmp_path, monkeypatch):
    """What torch does with a full disk, and the older checkpoint that stays."""
    model, optimizer = _trained()
    _save(tmp_path, 1, model, optimizer)

    def full(*_, **__):
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(BadInput, match=r"cannot write checkpoint .* free there"):
        _save(tmp_path, 2, model, optimizer)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-0000000001.pt"]
