"""Translated networks compute what untranslated ones do; where translation fails they run as they are, and say why."""

from __future__ import annotations

import copy
import importlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from allpull.schema.trainspec import ModelSpec  # noqa: E402
from allpull.train.models.build import build  # noqa: E402
from allpull.train.numerics.compiled import LONGEST_REASON, Compiled  # noqa: E402

pytestmark = pytest.mark.torch
needs_a_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


class Net(nn.Module):
    """A convolution, a norm and a head: one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


class Product(nn.Module):
    """A network that is translated to Python alone, as torch has the product of two matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3, bias=False)

    def forward(self, x):
        return self.head(x)


class Silent(nn.Module):
    """A network that torch.compile is told to leave alone."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    @torch.compiler.disable
    def forward(self, x):
        return self.head(x)


@pytest.fixture(autouse=True)
def fresh_compiler(tmp_path, monkeypatch):
    """Nothing translated before, on disk or in memory, and the process's settings as they were afterwards."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    settings = importlib.import_module("torch._dynamo.config")
    torch._dynamo.reset()
    with settings.patch(suppress_errors=False, cache_size_limit=8):
        yield
    torch._dynamo.reset()


def gradients(model, images):
    model.zero_grad()
    model(images).square().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def assert_same(model, plain, images, *, called=None):
    """``model``, or what is ``called`` in its place, has the gradients and batch statistics of ``plain``."""
    for mine, theirs in zip(gradients(called or model, images), gradients(plain, images), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=1e-4, atol=1e-5)


@pytest.fixture
def no_compiler():
    """As on a machine whose variable CXX names nothing."""
    with importlib.import_module("torch._inductor.config").patch({"cpp.cxx": (None, "/nonexistent/c++")}):
        yield


@needs_a_compiler
@pytest.mark.slow
def test_a_translated_network_keeps_its_names_and_its_gradients():
    torch.manual_seed(0)
    plain = Net()
    names = [*plain.state_dict()]
    translate = Compiled("default")
    model = translate(copy.deepcopy(plain))
    assert [*model.state_dict()] == names
    images = torch.randn(6, 1, 8, 8)
    assert_same(model, plain, images)
    assert translate.why_not() == ""
    assert translate._graphs == 1
    if hasattr(torch.compiler, "set_stance"):
        with translate.plain():
            model(images[:5])
        assert translate._graphs == 1, "a ragged batch was translated"


@needs_a_compiler
@pytest.mark.slow
def test_a_translated_resnet_trains_as_an_untranslated_one():
    """Twenty steps with momentum, then evaluation; in float64, where the order of sums does not show."""
    torch.manual_seed(0)
    plain = build(ModelSpec(width=8), channels=1, classes=10).double().to(memory_format=torch.channels_last)
    translate = Compiled("default")
    model = translate(copy.deepcopy(plain))
    images, labels = torch.randn(32, 1, 8, 8).double(), torch.randint(10, (32,))
    losses = []
    for each in (plain, model):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.02, momentum=0.9)
        curve = []
        for _ in range(20):
            loss = nn.functional.cross_entropy(each(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            curve.append(loss.item())
        losses.append(curve)
    assert translate.why_not() == ""
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(images), plain.eval()(images), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_without_a_compiler_the_network_runs_as_it_is_and_says_why(no_compiler):
    torch.manual_seed(0)
    plain = Net()
    translate = Compiled("default")
    model = translate(copy.deepcopy(plain))
    assert_same(model, plain, torch.randn(6, 1, 8, 8))
    assert "No working C++ compiler" in translate.why_not()
    assert translate.why_not().startswith("torch.compile failed: ")
    assert len(translate.why_not()) <= LONGEST_REASON


@pytest.mark.slow
def test_a_backward_that_cannot_be_translated_is_found_before_it_runs(monkeypatch):
    compiler = importlib.import_module("torch._inductor.compile_fx")
    if not hasattr(importlib.import_module("torch._functorch.config"), "force_non_lazy_backward_lowering"):
        pytest.skip("this torch translates backward when it first runs")

    real = compiler.fx_codegen_and_compile
    tried = []

    def fails_in_backward(*arguments, **options):
        tried.append(bool(options.get("is_backward")))
        if tried[-1]:
            raise NotImplementedError("no such kernel")
        return real(*arguments, **options)

    monkeypatch.setattr(compiler, "fx_codegen_and_compile", fails_in_backward)
    torch.manual_seed(0)
    plain = Net()
    translate = Compiled("default")
    model = translate(copy.deepcopy(plain))
    assert_same(model, plain, torch.randn(6, 1, 8, 8))
    assert True in tried
    assert "no such kernel" in translate.why_not()


@pytest.fixture
def group_of_one(tmp_path):
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@needs_a_compiler
@pytest.mark.slow
def test_within_ddp_graphs_are_cut_where_buckets_end(group_of_one, monkeypatch):
    """Else all gradients would be ready at once, and nothing be sent while backward goes on."""
    monkeypatch.setattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 1)  # torch.compile refuses buckets smaller than this
    torch.manual_seed(0)
    plain = Net()
    translate = Compiled("default")
    wrapped = DistributedDataParallel(translate(copy.deepcopy(plain)), bucket_cap_mb=1e-5)
    assert_same(wrapped.module, plain, torch.randn(6, 1, 8, 8), called=wrapped)
    assert translate.why_not() == ""
    assert translate._graphs > 1


def test_within_ddp_the_network_runs_translated_or_not_with_names_as_before(no_compiler, group_of_one):
    torch.manual_seed(0)
    plain = Net()
    translate = Compiled("default")
    model = translate(copy.deepcopy(plain))
    wrapped = DistributedDataParallel(model)
    for _ in range(2):
        assert_same(model, plain, torch.randn(6, 1, 8, 8), called=wrapped)
    assert [*wrapped.module.state_dict()] == [*plain.state_dict()]
    assert "No working C++ compiler" in translate.why_not()


def test_a_network_that_is_never_translated_is_said_to_be_so():
    translate = Compiled("default")
    translate(Silent())(torch.ones(2, 4))
    assert "nothing in the network" in translate.why_not()


def test_a_torch_that_cannot_translate_at_all_leaves_the_network_alone(monkeypatch):
    def refuse(*_arguments, **_options):
        raise RuntimeError("Dynamo is not supported on Python 3.99\nand more")

    monkeypatch.setattr(torch, "compile", refuse)
    translate = Compiled("max-autotune")
    model = translate(Net())
    assert model(torch.ones(1, 1, 4, 4)).shape == (1, 3)
    assert translate.why_not() == "torch.compile failed: Dynamo is not supported on Python 3.99"


def test_none_touches_nothing():
    translate = Compiled("none")
    model = Net()
    assert translate(model) is model
    assert model._compiled_call_impl is None
    with translate.plain():
        pass
    assert translate.why_not() == ""


@pytest.mark.parametrize("planted", ["", "folder", "link", "file"])
def test_what_another_user_put_where_inductor_keeps_its_code_is_not_used(tmp_path, monkeypatch, planted):
    """Inductor executes what it finds there, and its own folder has a name that any user can take first."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torchinductor_me"))  # as torch itself sets it
    ours = tmp_path / f"torchinductor_allpull_{os.getuid()}"
    if planted == "folder":
        ours.mkdir()
        ours.chmod(0o777)
    elif planted == "link":
        (tmp_path / "stranger").mkdir()
        ours.symlink_to(tmp_path / "stranger")
    elif planted == "file":
        ours.touch()
    model = Compiled("default")(Product())
    model(torch.randn(2, 4)).sum().backward()
    used = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert (used == ours) == (planted == "")
    assert stat.S_IMODE(used.lstat().st_mode) == 0o700
    assert list(used.iterdir())
    assert not planted or ours.is_file() or not list(ours.iterdir())


def test_a_folder_that_the_user_chose_for_compiled_code_is_kept(monkeypatch, tmp_path_factory):
    chosen = tmp_path_factory.mktemp("chosen")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(chosen))
    Compiled("default")(Net())
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(chosen)
