"""Checkpoints: whole or not at all, of any rank's state, and hostile files are one clear error."""

from __future__ import annotations

import dataclasses
import errno
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from allpull.errors import BadInput  # noqa: E402
from allpull.schema.spec import TrainSpec  # noqa: E402
from allpull.schema.trainspec import ParallelSpec  # noqa: E402
from allpull.train.checkpoint import background_write, save_restore  # noqa: E402
from allpull.train.checkpoint.format import MAX_COUNT, read  # noqa: E402
from allpull.train.checkpoint.safe_load import UnusableFile, plain_copy  # noqa: E402
from allpull.train.checkpoint.save_restore import Checkpoints, EpochFingerprint, Progress, TrainingState  # noqa: E402
from allpull.train.models import MODELS  # noqa: E402
from allpull.train.numerics.precision import Precision  # noqa: E402
from allpull.train.optim.ema import Average  # noqa: E402
from allpull.train.optim.optimizer import optimizer_of  # noqa: E402
from allpull.train.parallel.ranks import Ranks  # noqa: E402
from allpull.train.parallel.strategy import distribute  # noqa: E402

pytestmark = pytest.mark.torch
CUT = EpochFingerprint(global_batch=64, samples=1437, seed=0, dtype="float32", data="digits")
ALONE = Ranks(rank=0, ranks=1, device=torch.device("cpu"))
PATIENCE_S = 60.0


def parts(width=4, steps=0, averaged=False, precision="fp32", **options):
    """A network that has made ``steps`` steps, with all that belongs to it."""
    torch.manual_seed(width)
    model = MODELS.load("resnet8")(1, 10, width, "batch")
    numbers = Precision(precision, ALONE.device)
    numbers.prepare(model)
    shared = distribute(model, ParallelSpec(), ALONE)
    optimizer = optimizer_of(model, TrainSpec(**options))
    numbers.attach(optimizer)
    average = Average(model, half_life_steps=2, masters=numbers.masters) if averaged else None
    made = TrainingState(shared=shared, optimizer=optimizer, precision=numbers, average=average)
    for step in range(steps):
        one_step(made, step)
    return made


def one_step(made, step):
    """A step on samples of chance, which are drawn from torch's own numbers as dropout is."""
    made.precision.backward(made.precision.forward(made.shared.module, torch.randn(4, 1, 8, 8)).square().mean())
    made.precision.step(made.optimizer)
    if made.average:
        made.average.after(step)


def checkpoints(folder, made, keep=2, fingerprint=CUT, asynchronous=False, ranks=ALONE):
    return Checkpoints(
        folder / "checkpoints", ranks, made, fingerprint=fingerprint, keep=keep, asynchronous=asynchronous
    )


def progress(step):
    return Progress(step=step, epoch=1, in_epoch=2, losses=[0.5])


def everything(made):
    """All numbers of a training: weights, statistics, momentum, average and the next number of chance."""
    found = {**made.shared.model_state()}
    for number, about in enumerate(made.optimizer.state.values()):
        found[f"momentum {number}"] = about["momentum_buffer"].clone()
    if made.average:
        with made.average.in_place():
            found |= {f"average {name}": value for name, value in made.shared.model_state().items()}
    return {**found, "chance": torch.random.get_rng_state()}


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("precision", "options"), [("fp32", {}), ("fp16", {"optimizer": "lars"}), ("o2", {"nesterov": True})]
)
def test_what_goes_on_is_bit_for_bit_what_would_have_been(tmp_path, precision, options):
    made = parts(steps=3, averaged=True, precision=precision, **options)
    checkpoints(tmp_path, made).save(progress(3))
    for step in range(3, 6):
        one_step(made, step)
    other = parts(steps=1, averaged=True, precision=precision, **options)
    assert checkpoints(tmp_path, other).restore(tmp_path) == progress(3)
    for step in range(3, 6):
        one_step(other, step)
    assert same(everything(made), everything(other))
    assert made.precision.state_dict() == other.precision.state_dict()


def test_an_average_that_a_checkpoint_lacks_begins_with_its_weights(tmp_path, heard):
    checkpoints(tmp_path, parts(steps=2)).save(progress(2))
    other = parts(averaged=True)
    checkpoints(tmp_path, other).restore(tmp_path)
    (said,) = heard
    assert "step-0000000002.pt has no moving average" in said
    own = other.shared.model_state()
    with other.average.in_place():
        assert same(own, other.shared.model_state())


def test_settings_of_the_optimizer_are_those_of_the_training_that_goes_on(tmp_path):
    checkpoints(tmp_path, parts(steps=2)).save(progress(2))
    other = parts(weight_decay=0.5, momentum=0.1)
    checkpoints(tmp_path, other).restore(tmp_path)
    assert [group["weight_decay"] for group in other.optimizer.param_groups] == [0.5, 0.0]
    assert {group["momentum"] for group in other.optimizer.param_groups} == {0.1}
    assert len(other.optimizer.state) == len(list(other.shared.model.parameters()))


def test_another_optimizer_has_nothing_to_go_on_from(tmp_path):
    checkpoints(tmp_path, parts(steps=1)).save(progress(2))
    other = parts(optimizer="lars")
    before = everything(other)
    with pytest.raises(BadInput, match="optimizer is SGD, and this training uses Lars") as refused:
        checkpoints(tmp_path, other).restore(tmp_path)
    assert "network" not in str(refused.value)  # which is the same one
    assert same(everything(other), before)


def test_checkpoints_of_the_first_format_are_still_read(tmp_path):
    made = parts(steps=2)
    content = {
        "format": 1,
        "step": 7,
        "epoch": 1,
        "in_epoch": 2,
        "losses": [0.5],
        "cut": {"global_batch": 64, "samples": 1437, "seed": 0, "dtype": "float32"},
        "model": made.shared.model.state_dict(),
        "optimizer": made.optimizer.state_dict(),
        "buffers": [dict(made.shared.model.named_buffers())],
    }
    (tmp_path / "checkpoints").mkdir()
    torch.save(content, tmp_path / "checkpoints/step-0000000007.pt")
    other = parts()
    assert checkpoints(tmp_path, other).restore(tmp_path) == progress(7)
    mine, theirs = everything(made), everything(other)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine if name != "chance")


def test_a_torn_checkpoint_is_passed_over_for_the_one_before_and_that_is_said(tmp_path, heard):
    made = parts(steps=1)
    for step in (10, 20):
        checkpoints(tmp_path, made).save(progress(step))
    newest = tmp_path / "checkpoints/step-0000000020.pt"
    newest.write_bytes(newest.read_bytes()[:-1000])
    other = parts()
    assert checkpoints(tmp_path, other).restore(tmp_path) == progress(10)
    (said,) = heard
    assert re.search(r"step-0000000020.pt cannot be read: .* resuming from step-0000000010.pt", said)
    assert same(made.shared.model_state(), other.shared.model_state())


def test_one_flipped_bit_is_seen(tmp_path):
    """torch.load would take it: it looks at no checksum."""
    made = parts(steps=1)
    checkpoints(tmp_path, made).save(progress(10))
    (path,) = (tmp_path / "checkpoints").iterdir()
    with zipfile.ZipFile(path) as archive:
        tensors = (part for part in archive.infolist() if "/data/" in part.filename)
        part = max(tensors, key=lambda part: part.file_size)
    content = bytearray(path.read_bytes())
    content[part.header_offset + part.file_size // 2] ^= 1
    path.write_bytes(content)
    torch.load(path, weights_only=True)
    with pytest.raises(BadInput, match="is damaged"):
        checkpoints(tmp_path, made).restore(tmp_path)


def test_only_the_newest_checkpoints_are_kept_and_nothing_half_written(tmp_path):
    made = parts()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/step-0000000001.tmp").write_bytes(b"of one that was killed")
    for step in (2, 3, 4, 5):
        checkpoints(tmp_path, made, keep=3).save(progress(step))
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == [f"step-000000000{step}.pt" for step in (3, 4, 5)]


def test_a_run_directory_exchanged_for_a_link_gets_no_checkpoint_and_loses_none(tmp_path):
    """Its name leads to another run, with older checkpoints that pruning would remove."""
    ours, other = tmp_path / "ours", tmp_path / "other"
    for run in (ours, other):
        (run / "checkpoints").mkdir(parents=True)
    saved = checkpoints(ours, parts(), keep=1)
    saved.save(progress(2))
    for name in ("step-0000000001.pt", "step-0000000001.pt.0123456789abcdef.tmp"):
        (other / "checkpoints" / name).write_bytes(b"precious")
    ours.rename(tmp_path / "moved")
    ours.symlink_to(other)
    saved.save(progress(3))
    assert len(list((other / "checkpoints").iterdir())) == 2
    assert [path.name for path in (tmp_path / "moved/checkpoints").iterdir()] == ["step-0000000003.pt"]


@pytest.mark.parametrize("planted", ["pipe", "endless", "link"])
def test_a_checkpoint_is_a_regular_file_of_its_run(tmp_path, heard, planted):
    """A pipe without a writer, a link to /dev/zero, and a link to a checkpoint elsewhere: the one before is used."""
    run, made = tmp_path / "run", parts()
    run.mkdir()
    checkpoints(run, made).save(progress(2))
    newest = run / "checkpoints/step-0000000003.pt"
    if planted == "pipe":
        os.mkfifo(newest)
    elif planted == "endless":
        newest.symlink_to("/dev/zero")
    else:
        checkpoints(tmp_path, made).save(progress(3))
        newest.symlink_to(tmp_path / "checkpoints/step-0000000003.pt")
    assert checkpoints(run, parts()).restore(run) == progress(2)
    reason = "not a regular file" if planted == "pipe" else "a link that leaves the run directory"
    assert reason in str(heard)


def test_what_was_just_written_is_never_dropped_for_a_later_one_that_is_torn(tmp_path):
    made = parts()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/step-0000000020.pt").write_bytes(b"torn")
    for step in (5, 10):
        checkpoints(tmp_path, made, keep=1).save(progress(step))
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-0000000010.pt", "step-0000000020.pt"]


def test_a_checkpoint_that_would_run_code_is_not_loaded(tmp_path):
    """Pickle can name any function."""
    (tmp_path / "checkpoints").mkdir()
    torch.save({"format": 1, "model": EpochFingerprint}, tmp_path / "checkpoints/step-0000000001.pt")
    named = r"cannot be read: it requires allpull\.train\.checkpoint\.format EpochFingerprint"
    with pytest.raises(BadInput, match=named):
        checkpoints(tmp_path, parts()).restore(tmp_path)


class Hoard:
    """Pickled, it is an array of a terabyte, which ``weights_only`` alone would make."""

    def __reduce__(self):
        return bytearray, (1 << 40,)


def endless():
    """A list that holds itself."""
    found = []
    found.append(found)
    return found


def laughs():
    """Ten to the twentieth elements in two hundred places."""
    found = [0] * 10
    for _ in range(9):
        found = [found] * 100
    return found


@pytest.mark.parametrize(
    "hostile",
    [
        {"step": "1"},
        {"step": float("nan")},
        {"step": True},
        {"step": MAX_COUNT},
        {"step": 1},
        {"in_epoch": -1},
        {"losses": [None]},
        {"losses": [0.5] * 3},
        {"losses": endless()},
        {"losses": laughs()},
        {"losses": Hoard()},
        {"ranks": None},
        {"ranks": []},
        {"ranks": [{}]},
        {"ranks": [{"buffers": {}, "average": {}, "random": 1}]},
        {"cut": {}},
        {"cut": {"global_batch": "64", "samples": 1, "seed": 0, "dtype": "float32"}},
        {"model": torch.zeros(1)},
        {"model": {"a": 1}},
        {"model": {"a": torch.zeros(1).expand(1 << 50)}},
        {"optimizer": {}},
        {"optimizer": {"kind": "SGD", "param_groups": [], "state": {0: {"momentum_buffer": "1"}}}},
        {"average": 3},
        {"format": 4},
        {"format": None},
    ],
    ids=lambda hostile: next(iter(hostile)),
)
def test_a_hostile_checkpoint_is_one_clear_error(tmp_path, hostile):
    checkpoints(tmp_path, parts(steps=1)).save(progress(10))
    (path,) = (tmp_path / "checkpoints").iterdir()
    torch.save({**torch.load(path, weights_only=True), **hostile}, path)
    with pytest.raises(BadInput, match=r"not a checkpoint of this trainer|cannot be read"):
        checkpoints(tmp_path, parts()).restore(tmp_path)


@pytest.mark.parametrize(
    ("second", "fits"),
    [
        ({}, True),
        ({"left_out/w": torch.ones(3)}, True),
        ({"steps": torch.tensor(0)}, False),
        ({"steps": torch.tensor(6.0)}, False),
        ({"left_out/w": torch.zeros(4)}, False),
        ({"left_out/w": torch.zeros(3, dtype=torch.float64)}, False),
        ({"basis/w": torch.zeros(3)}, False),
        (None, False),
    ],
)
def test_ranks_are_at_one_about_powersgd(tmp_path, second, fits):
    """One that sends whole gradients would wait for ever for others that send two factors; what is owed may differ."""
    checkpoints(tmp_path, parts(steps=1)).save(progress(10))
    (path,) = (tmp_path / "checkpoints").iterdir()
    content = torch.load(path, weights_only=True)
    (one,) = content["ranks"]
    of_first = {"steps": torch.tensor(6), "left_out/w": torch.zeros(3)}
    of_second = {} if second is None else {**of_first, **second}
    torch.save({**content, "ranks": [{**one, "powersgd": of_first}, {**one, "powersgd": of_second}]}, path)
    if fits:
        assert [int(rank.powersgd["steps"]) for rank in read(path).ranks] == [6, 6]
    else:
        with pytest.raises(UnusableFile, match="ranks have different states of PowerSGD"):
            read(path)


@pytest.mark.parametrize(
    "foreign",
    [
        b"",
        b"PK\x05\x06" + bytes(18),
        pickle.dumps({"format": 2}),
        b"\x00" * 5000,
    ],
)
def test_a_foreign_file_is_one_clear_error(tmp_path, foreign):
    place = tmp_path / "some.pt"
    place.write_bytes(foreign)
    with pytest.raises(BadInput, match=r"cannot resume from .* some.pt cannot be read"):
        checkpoints(tmp_path, parts()).restore(place)


def test_a_packed_file_is_not_unpacked(tmp_path):
    """A gigabyte of nothing is a megabyte when packed."""
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 20))
    with pytest.raises(UnusableFile, match="compressed"):
        read(tmp_path / "bomb.pt")


def test_a_tensor_that_claims_more_than_the_file_holds_is_refused(tmp_path):
    """torch takes the size from the pickle, and would read beyond the part."""
    torch.save({"a": torch.zeros(100)}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        held = {part.filename: archive.read(part) for part in archive.infolist()}
    with zipfile.ZipFile(tmp_path / "b.pt", "w") as archive:
        for name, content in held.items():
            much = content.replace(b"Kd", b"J\xff\xff\xff\x7f") if name.endswith("data.pkl") else content
            archive.writestr(name, much)
    assert b"J\xff" in zipfile.ZipFile(tmp_path / "b.pt").read("a/data.pkl")
    with pytest.raises(UnusableFile):
        read(tmp_path / "b.pt")


@pytest.mark.parametrize("shape", [(), (3,)])
def test_momentum_of_another_shape_is_of_another_network(tmp_path, shape):
    checkpoints(tmp_path, parts(steps=1)).save(progress(10))
    (path,) = (tmp_path / "checkpoints").iterdir()
    content = torch.load(path, weights_only=True)
    content["optimizer"]["state"][0]["momentum_buffer"] = torch.zeros(shape)
    torch.save(content, path)
    with pytest.raises(BadInput, match="another network"):
        checkpoints(tmp_path, parts()).restore(tmp_path)


def test_only_plain_values_are_saved():
    with pytest.raises(ValueError, match="Path in it"):
        plain_copy({"a": [Path()]})
    tensor = torch.zeros(2)
    copied = plain_copy({"a": [tensor, 1.5, None, "b", True]})
    tensor.fill_(1)
    assert copied["a"][0].tolist() == [0, 0]


def test_a_checkpoint_of_another_network_says_so(tmp_path):
    checkpoints(tmp_path, parts(steps=1)).save(progress(2))
    with pytest.raises(BadInput, match="another network"):
        checkpoints(tmp_path, parts(width=8)).restore(tmp_path)


def test_resuming_from_nothing_says_so(tmp_path):
    with pytest.raises(BadInput, match="no checkpoint"):
        checkpoints(tmp_path, parts()).restore(tmp_path)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ("global_batch", "global batch"),
        ("samples", "number of samples"),
        ("seed", "seed"),
        ("dtype", "arithmetic"),
        ("order", "order of samples"),
        ("data", "data set"),
    ],
)
def test_resuming_within_an_epoch_refuses_another_order_of_samples(tmp_path, changed, words):
    made = parts()
    checkpoints(tmp_path, made).save(progress(2))
    other = dataclasses.replace(CUT, **{changed: "other" if changed in ("dtype", "order", "data") else 7})
    with pytest.raises(BadInput, match=f"within an epoch, and the {words}"):
        checkpoints(tmp_path, made, fingerprint=other).restore(tmp_path)
    at_its_end = Progress(step=3, epoch=2, in_epoch=0, losses=[])
    checkpoints(tmp_path, made).save(at_its_end)
    assert checkpoints(tmp_path, made, fingerprint=other).restore(tmp_path) == at_its_end


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"),
    ],
)
def test_a_checkpoint_that_does_not_fit_the_disk_is_one_clear_error(tmp_path, monkeypatch, asynchronous, failure):
    """What torch does with a full disk; the older checkpoint stays, and the error is raised once."""
    made = checkpoints(tmp_path, parts(), asynchronous=asynchronous)
    made.save(progress(3))
    made.finish()

    def full(*_, **__):
        raise failure

    def save_and_finish():
        made.save(progress(4))
        made.finish()

    with monkeypatch.context() as patched:
        patched.setattr(background_write.torch, "save", full)
        with pytest.raises(BadInput, match=r"cannot write checkpoint .* free there"):
            save_and_finish()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-0000000003.pt"]
    made.finish()
    made.save(progress(5))
    made.finish()
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_too_many_open_files_are_no_matter_of_the_folder(tmp_path, monkeypatch):
    def exhausted(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(background_write.torch, "save", exhausted)
    with pytest.raises(BadInput, match=r"Too many open files$") as raised:
        checkpoints(tmp_path, parts()).save(progress(3))
    assert raised.value.hint.startswith("raise the limit of open files")


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(BadInput, match="cannot write checkpoint"):
        checkpoints(tmp_path, parts()).save(progress(3))


def test_training_goes_on_while_a_checkpoint_is_written_and_does_not_change_it(tmp_path, monkeypatch):
    """One at a time: the second save waits for the first."""
    written, may_write = [], threading.Event()
    real = background_write.write_whole

    def slow(*given, **options):
        assert may_write.wait(PATIENCE_S)
        written.append(threading.current_thread() is threading.main_thread())
        real(*given, **options)

    monkeypatch.setattr(save_restore, "write_whole", slow)
    made = parts(steps=2, averaged=True)
    saved = checkpoints(tmp_path, made, asynchronous=True)
    saved.save(progress(2))
    then = everything(made)
    for step in range(3):
        one_step(made, step)  # the file is not written yet
    assert written == []
    later = threading.Timer(0.2, may_write.set)
    later.start()
    saved.save(progress(5))
    assert written[0] is False
    saved.finish()
    assert len(written) == 2
    (tmp_path / "checkpoints/step-0000000005.pt").unlink()
    other = parts(averaged=True)
    checkpoints(tmp_path, other).restore(tmp_path)
    assert same(then, everything(other))


KILLED = """
import os, sys, torch
from pathlib import Path
from allpull.train.checkpoint import background_write
sys.path.insert(0, sys.argv[2])
from test_save_restore import checkpoints, parts, progress
folder = Path(sys.argv[1])
made = parts(steps=1)
saved = checkpoints(folder, made, asynchronous=True)
saved.save(progress(10))
saved.finish()
class Stuck:
    def __init__(self, file): self.file = file
    def __getattr__(self, name): return getattr(self.file, name)
    def write(self, data):
        self.file.write(data)
        self.file.flush()
        if self.file.tell() > 20_000:
            print("half", flush=True)
            import time; time.sleep(600)
        return len(data)
real = torch.save
background_write.torch.save = lambda content, file: real(content, Stuck(file))
saved.save(progress(20))
saved.finish()
print("whole")
"""


def test_a_process_killed_while_it_writes_leaves_the_checkpoint_before(tmp_path):
    """With kill -9, half of the file being on the disk."""
    here = str(Path(__file__).parent)
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path), here], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "half\n", process.stderr.read()
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names[0] == "step-0000000010.pt"
    assert re.fullmatch(r"step-0000000020\.pt\.[0-9a-f]{16}\.tmp", names[1])
    assert len(names) == 2
    assert (tmp_path / "checkpoints" / names[1]).stat().st_size > 20_000
    made = parts()
    saved = checkpoints(tmp_path, made)
    assert saved.restore(tmp_path) == progress(10)
    saved.save(progress(15))
    assert not list((tmp_path / "checkpoints").glob("*.tmp"))


@pytest.mark.slow
def test_a_program_that_ends_by_an_error_still_finishes_its_checkpoint(tmp_path):
    program = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_save_restore import checkpoints, parts, progress
checkpoints(Path(sys.argv[1]), parts(), asynchronous=True).save(progress(10))
raise SystemExit(3)
"""
    here = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path), here], check=False, timeout=PATIENCE_S * 2)
    assert done.returncode == 3
    assert read(tmp_path / "checkpoints/step-0000000010.pt").progress == progress(10)


def test_the_wait_ends_with_the_write():
    task = background_write.BackgroundTask()
    begun = time.monotonic()
    task.start(lambda: time.sleep(0.05))
    task.wait()
    assert time.monotonic() - begun >= 0.05
    task.wait()
