"""Weights of a file: what has torchvision's layout fits, whatever stands around it; all else is one clear error."""

from __future__ import annotations

import io
import pickle
import struct
import tarfile
import zipfile
from collections import OrderedDict

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from allpull.data.loader.open_feed import open_feed  # noqa: E402
from allpull.errors import BadInput  # noqa: E402
from allpull.schema.spec import RunSpec  # noqa: E402
from allpull.schema.trainspec import DataSpec, ModelSpec, TrainSpec  # noqa: E402
from allpull.train.checkpoint.pretrained import load_pretrained  # noqa: E402
from allpull.train.learner import learner_of  # noqa: E402
from allpull.train.models.build import build  # noqa: E402
from allpull.train.parallel.ranks import Ranks  # noqa: E402

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
    assert load_pretrained(other, tmp_path / "w.pt", classes=10, new_head=False) == []
    assert same(one, other)


@pytest.mark.parametrize("name", ["resnet18", "vgg16", "vgg16_bn"])
def test_a_head_for_other_classes_is_left_out_where_that_is_asked_for(tmp_path, name):
    one, other = (network(seed, name=name, classes=classes, width=2) for seed, classes in ((1, 12), (2, 7)))
    torch.save(one.state_dict(), tmp_path / "w.pt")
    before = {key: value.clone() for key, value in other.state_dict().items()}
    with pytest.raises(BadInput, match="is for 12 classes, and the data have 7") as refused:
        load_pretrained(other, tmp_path / "w.pt", classes=7, new_head=False)
    assert "model.new_head=true" in refused.value.hint
    assert all(torch.equal(value, before[key]) for key, value in other.state_dict().items())
    heads = load_pretrained(other, tmp_path / "w.pt", classes=7, new_head=True)
    weights, biases = heads[::2], heads[1::2]
    assert [name.removesuffix(".weight") for name in weights] == [name.removesuffix(".bias") for name in biases]
    for key, value in other.state_dict().items():
        assert torch.equal(value, before[key] if key in heads else one.state_dict()[key])


def test_the_auxiliary_head_in_torchvisions_inception_is_no_obstacle(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.nn.init, "trunc_normal_", lambda *_: None)  # takes seconds, and is written over
    model = build(ModelSpec(name="inception_v3"), channels=3, classes=10, pixels=(75, 75))
    one_number = {name: torch.full_like(value, 7) for name, value in model.state_dict().items()}
    auxiliary = {"AuxLogits.conv0.conv.weight": torch.ones(1), "AuxLogits.fc.bias": torch.ones(1000)}
    torch.save(one_number | auxiliary, tmp_path / "w.pt")
    assert load_pretrained(model, tmp_path / "w.pt", classes=10, new_head=False) == []
    assert all((value == 7).all() for value in model.state_dict().values())
    torch.save(one_number | {"AuxHead.fc.bias": torch.ones(10)}, tmp_path / "w.pt")
    with pytest.raises(BadInput, match=r"unexpected are AuxHead\.fc\.bias"):
        load_pretrained(model, tmp_path / "w.pt", classes=10, new_head=False)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: network(1, name="resnet34").state_dict(), "unexpected are layer1.2.conv1.weight, .* and [0-9]+ more"),
        (lambda: network(1, width=8).state_dict(), r"of other shapes are conv1.weight \[8, 3, 7, 7\], here \[4,"),
        (lambda: {"conv1.weight": torch.zeros(4, 3, 7, 7)}, "missing are bn1.weight"),
        (lambda: {"a": 1}, "a is not a tensor"),
        (dict, "holds no weights"),
        (lambda: [1], "holds no weights"),
        (lambda: {"a": RuntimeError()}, "cannot be read"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_clear_error(tmp_path, made, words):
    torch.save(made(), tmp_path / "w.pt")
    with pytest.raises(BadInput, match=words) as refused:
        load_pretrained(network(2), tmp_path / "w.pt", classes=10, new_head=False)
    assert refused.value.hint


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04", b"{}", bytes(range(256))])
def test_no_file_of_tensors_is_one_clear_error(tmp_path, content):
    if content is not None:
        (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(BadInput, match=r"model.weights: .*w.pt cannot be read"):
        load_pretrained(network(2), tmp_path / "w.pt", classes=10, new_head=True)


class Runs:
    """What would write a file if it were loaded as any pickle is."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def swollen(state):
    """A tensor that claims a million times the memory that the file has for it."""
    return {**state, "fc.weight": torch.zeros(1).expand(1000, 1000)}


class Endless:
    """Makes as many bytes as it is asked for; ``weights_only`` lets it pass."""

    def __reduce__(self):
        return (bytearray, (1 << 33,))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda state, folder: {**state, "x": Runs(folder / "ran")}, "it requires .*open"),
        (lambda state, _: {**state, "x": Endless()}, "it requires .*bytearray"),
        (lambda state, _: swollen(state), "more bytes than"),
    ],
)
def test_a_strangers_file_runs_nothing_and_claims_no_more_than_it_holds(tmp_path, made, words, zipped):
    path = tmp_path / "w.pt"
    torch.save(made(network(1).state_dict(), tmp_path), path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(BadInput, match=f"{path} cannot be read: {words}") as refused:
        load_pretrained(network(2), path, classes=10, new_head=False)
    assert "torch.save(model.state_dict(), FILE)" in refused.value.hint
    assert not (tmp_path / "ran").exists()


def parts_of(value, root="archive"):
    """Names and contents of what ``torch.save`` would write."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    with zipfile.ZipFile(buffer) as archive:
        return {f"{root}/{one.filename.partition('/')[2]}": archive.read(one) for one in archive.infolist()}


def zip_of(named, pack=()):
    """A zip file of ``named``, and where its list of parts begins."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in named.items():
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=zipfile.ZIP_DEFLATED if name in pack else 0)
        begin = archive.fp.tell()
    return buffer.getvalue(), begin


def other_capitals(harmless, hostile):
    """torch's reader finds DATA.PKL when it looks for data.pkl."""
    renamed = {name.replace("data.pkl", "DATA.PKL"): content for name, content in hostile.items()}
    return zip_of({**renamed, "archive/x/data.pkl": harmless["archive/data.pkl"]})[0]


def both_capitals(harmless, hostile):
    return zip_of({"archive/DATA.PKL": hostile["archive/data.pkl"], **harmless})[0]


def two_folders(harmless, hostile):
    """torch looks into the folder of the first part."""
    return zip_of({**hostile, **{name.replace("archive", "other"): one for name, one in harmless.items()}})[0]


def half_an_end(_, hostile):
    """To ``zipfile`` no zip file, but one to torch; and its first bytes are five pickles of nothing."""
    return zip_of({"archive/x\n.N.N.N.N.": b"", **hostile}, pack=hostile)[0] + b"PK\x05\x06"


def two_lists(harmless, hostile):
    """The last record points to the hostile list; ``zipfile`` reads the one that stands right before it."""
    theirs, begin = zip_of(hostile)
    ours, at = zip_of(harmless)
    between, listed, end = theirs[:-22] + ours[:at], bytearray(ours[at:-22]), bytearray(ours[-22:])
    place = 0
    while place < len(listed):  # zipfile adds what it takes for bytes before the archive
        (offset,) = struct.unpack_from("<L", listed, place + 42)
        struct.pack_into("<L", listed, place + 42, offset + len(theirs) - 22 - (len(between) - begin))
        place += 46 + sum(struct.unpack_from("<3H", listed, place + 28))
    struct.pack_into("<L", end, 16, begin)
    return between + listed + end


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (other_capitals, "it has no list of tensors"),
        (both_capitals, "two of its members have the same name"),
        (two_folders, "more than one folder"),
        (half_an_end, "only partly a zip file"),
        (two_lists, "its central directory is not where it should be"),
    ],
)
def test_a_zip_file_that_torch_would_read_otherwise_than_python_is_refused(tmp_path, made, words):
    path = tmp_path / "w.pt"
    path.write_bytes(made(parts_of({"shown": torch.ones(4)}), parts_of({"hidden": torch.ones(4)})))
    if made not in (both_capitals, two_folders):  # torch may refuse these itself
        assert [*torch.load(path, weights_only=True)] == ["hidden"]
    with pytest.raises(BadInput, match=f"cannot be read: .*{words}"):
        load_pretrained(network(2), path, classes=10, new_head=False)


def test_a_part_of_a_zip_file_says_its_place_once(tmp_path):
    named = parts_of({"w": torch.ones(4)})
    for often, words in ((1, "holds the weights of another network"), (2, "has two locations")):
        with zipfile.ZipFile(tmp_path / "w.pt", "w") as archive:
            for name, content in named.items():
                part = zipfile.ZipInfo(name)
                part.extra = struct.pack("<2H2Q", 1, 16, len(content), len(content)) * often
                archive.writestr(part, content)
        with pytest.raises(BadInput, match=words):
            load_pretrained(network(2), tmp_path / "w.pt", classes=10, new_head=False)


@pytest.mark.parametrize("first", [b"N.N.N.N.N.", pickle.dumps(0x1950A86A20F9469CFC6C, 2) + b"N.N.N.N."])
def test_a_tar_file_is_refused_however_it_begins(tmp_path, first):
    """torch takes one apart by itself, and no ``ustar`` in it is needed for that."""
    head = bytearray(tarfile.TarInfo("x").tobuf(tarfile.GNU_FORMAT))
    head[: len(first)], head[257:265] = first, bytes(8)
    head[148:156] = b"%06o\0 " % (sum(head[:148]) + sum(head[156:512]) + 8 * 32)
    (tmp_path / "w.pt").write_bytes(head + bytes(1024))
    assert tarfile.is_tarfile(tmp_path / "w.pt")
    with pytest.raises(BadInput, match="it is a tar file"):
        load_pretrained(network(2), tmp_path / "w.pt", classes=10, new_head=False)


def test_a_stream_begins_with_torchs_magic_number(tmp_path):
    (tmp_path / "w.pt").write_bytes(b"N." * 5)
    with pytest.raises(BadInput, match="it is not a torch file"):
        load_pretrained(network(2), tmp_path / "w.pt", classes=10, new_head=False)
    buffer = io.BytesIO()
    torch.save({}, buffer, _use_new_zipfile_serialization=False)
    assert pickle.load(io.BytesIO(buffer.getvalue())) == 0x1950A86A20F9469CFC6C == torch.serialization.MAGIC_NUMBER


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_was_cut_off_is_one_clear_error(tmp_path, zipped):
    path = tmp_path / "w.pt"
    torch.save(network(1).state_dict(), path, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    for share in (0.01, 0.5, 0.99):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(BadInput, match=r"w.pt cannot be read: "):
            load_pretrained(network(2), path, classes=10, new_head=False)


def test_a_flipped_bit_in_a_zip_file_is_seen(tmp_path):
    path = tmp_path / "w.pt"
    torch.save(network(1).state_dict(), path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"w.pt cannot be read: .* is damaged"):
        load_pretrained(network(2), path, classes=10, new_head=False)


@pytest.mark.parametrize("zipped", [True, False])
def test_what_training_programs_save_beside_weights_is_no_obstacle(tmp_path, zipped):
    """A schedule with milestones has a ``Counter``; parameters may be saved as such; and a size, a device, a type."""
    one, other = network(1), network(2)
    optimizer = torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9)
    around = {
        "model": {**one.state_dict(), **dict(one.named_parameters())},
        "optimizer": optimizer.state_dict(),
        "lr_scheduler": torch.optim.lr_scheduler.MultiStepLR(optimizer, [30, 60]).state_dict(),
        "about": [torch.Size([3]), torch.device("cuda:0"), torch.float32, None, 1.5, "text"],
    }
    torch.save(around, tmp_path / "w.pt", _use_new_zipfile_serialization=zipped)
    assert load_pretrained(other, tmp_path / "w.pt", classes=10, new_head=False) == []
    assert same(one, other)


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
    assert heard == ["model.new_head: head.weight, head.bias start with random weights"]
