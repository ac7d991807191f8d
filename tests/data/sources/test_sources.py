"""Each source lists what is in it, in an order of its own, and nothing in it can lead elsewhere."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin
from tests.data.conftest import as_jpeg

from allpull.data.pack.read import Pack
from allpull.data.sources import SOURCES, guess, only_these
from allpull.data.sources.bigearthnet import BANDS
from allpull.data.sources.corine_labels import CLASSES_43, GROUPS_19, TO_19
from allpull.data.sources.imagefolder import listing as image_folder
from allpull.data.sources.tar import listing as tars
from allpull.errors import BadInput


@pytest.fixture(scope="module")
def jpeg(photos) -> bytes:
    return as_jpeg(photos[0].resize((40, 30)))


# ImageFolder


def test_classes_are_in_the_order_of_their_names(folder):
    found = image_folder(folder)
    assert found.source.classes == ("class 0", "class 1", "class 2")
    assert [entry.key for entry in found.entries] == sorted(entry.key for entry in found.entries)


def test_links_that_leave_the_source_are_left_out_and_listed(tmp_path, jpeg):
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "a").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret.jpg").write_bytes(jpeg)
    (root / "a" / "inside.jpg").write_bytes(jpeg)
    (root / "a" / "again.jpg").symlink_to("inside.jpg")
    (root / "a" / "leaves.jpg").symlink_to(outside / "secret.jpg")
    (root / "a" / "nowhere.jpg").symlink_to("missing.jpg")
    (root / "a" / "circle").symlink_to("../a")
    os.mkfifo(root / "a" / "pipe.jpg")
    (root / "b").symlink_to(outside)
    (root / "c").symlink_to("c")
    found = image_folder(root)
    assert [entry.key for entry in found.entries] == ["a/again.jpg", "a/inside.jpg"]
    assert found.source.classes == ("a",)
    assert {Path(name).name for name, _ in found.left_out} == {"b", "leaves.jpg", "nowhere.jpg", "circle", "pipe.jpg"}


def test_files_that_are_called_otherwise_than_pictures_are_left_out_and_listed(tmp_path, jpeg, make_pack):
    """What becomes of a file follows from its name; each is packed or listed, none is in neither."""
    root = tmp_path / "root" / "cat"
    root.mkdir(parents=True)
    packed = {"a.JPEG", "b.jfif", ".hidden.jpg", "c.jpe"}
    left_out = {
        "d.avif": "not an image suffix: .avif",
        "e f.HEIC": "not an image suffix: .heic",
        "README": "no suffix",
        "._a.JPEG": "a macOS metadata file",
        ".DS_Store": "no suffix",
    }
    for name in packed | set(left_out):
        (root / name).write_bytes(jpeg)
    done = make_pack(tmp_path / "root")
    assert done.header.records == len(packed)
    assert done.header.skipped == len(left_out)
    lines = (done.directory / "skipped.txt").read_text().splitlines()
    assert dict(line.split("\t") for line in lines) == {f"cat/{name}": why for name, why in left_out.items()}


def test_a_file_that_became_a_link_since_is_refused(tmp_path, jpeg, make_pack):
    (tmp_path / "root" / "a").mkdir(parents=True)
    for name in ("one.jpg", "two.jpg"):
        (tmp_path / "root" / "a" / name).write_bytes(jpeg)
    found = image_folder(tmp_path / "root")
    (tmp_path / "root" / "a" / "two.jpg").unlink()
    (tmp_path / "root" / "a" / "two.jpg").symlink_to("/etc/passwd")
    reasons = []
    for entry in found.entries:
        try:
            found.source.read(entry)
        except ValueError as refused:
            reasons.append(str(refused))
    assert reasons == ["missing, or a link out of the source"]


def test_folders_that_are_no_data_set_are_refused(tmp_path):
    with pytest.raises(BadInput, match="no such folder"):
        guess(tmp_path / "missing")
    with pytest.raises(BadInput, match="no known data set"):
        guess(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(BadInput, match="no images"):
        image_folder(tmp_path)


def test_only_some(tmp_path, folder):
    entries = image_folder(folder).entries
    names = tmp_path / "names.csv"
    names.write_text(f"{entries[3].key},1\n{entries[5].key}\n\n")
    assert only_these(entries, names) == [entries[3], entries[5]]
    names.write_text("nobody.jpg\n")
    with pytest.raises(BadInput, match=r"1 names are not in the source, such as 'nobody.jpg'"):
        only_these(entries, names)


# tar


def tar_of(path: Path, members: dict[str, bytes | tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            if isinstance(data, tarfile.TarInfo):
                archive.addfile(data)
            else:
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return path


def test_webdataset_shards(tmp_path, jpeg, make_pack):
    (tmp_path / "shards").mkdir()
    for shard in range(2):
        members = {}
        for number in range(3):
            members[f"{number:03d}.jpg"] = jpeg + bytes([shard, number])
            members[f"{number:03d}.cls"] = b"%d\n" % (number + shard)
            members[f"{number:03d}.json"] = b"{}"
        tar_of(tmp_path / "shards" / f"train-{shard}.tar", members)
    done = make_pack(tmp_path / "shards", classes=5)
    with Pack.open(done.directory) as pack:
        assert pack.header.classes == ("0", "1", "2", "3", "4")
        found = {
            name: (int(label), bytes(pack.record(index)))
            for index, (name, label) in enumerate(zip(pack.names(), pack.labels, strict=True))
        }
    assert found["train-1.tar:002.jpg"] == (3, jpeg + bytes([1, 2]))
    assert len(found) == 6


def test_members_of_a_tar_that_belong_to_no_picture_are_left_out_and_listed(tmp_path, jpeg):
    """What stands beside a picture, before or after it, belongs to that sample: nothing to tell of."""
    members = {"1.json": b"{}", "1.jpg": jpeg, "1.cls": b"0", "1.txt": b"a cat", "2.avif": jpeg, "2.cls": b"1"}
    found = tars(tar_of(tmp_path / "a.tar", {**members, "cat/._1.jpg": b"", "cat/._2.jpg": b""}))
    assert [entry.key for entry in found.entries] == ["a.tar:1.jpg"]
    assert found.left_out == [
        ("a.tar:2.avif", "not an image suffix: .avif"),
        ("a.tar:cat/._1.jpg", "a macOS metadata file"),
        ("a.tar:cat/._2.jpg", "a macOS metadata file"),
        ("a.tar:2.cls", "a label without an image"),
    ]


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz", "a.tar.zst"])
def test_a_compressed_tar_is_called_one_and_not_missing(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    for place, words in ((tmp_path / name, "a compressed tar file"), (tmp_path, "holds compressed tar files")):
        with pytest.raises(BadInput, match=words) as refused:
            guess(place)
        assert "decompress it to .tar" in refused.value.hint


def test_a_file_that_is_no_data_set_is_not_called_missing(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"")
    with pytest.raises(BadInput, match="neither tar nor npz"):
        guess(tmp_path / "a.zip")


def test_class_folders_in_a_tar(tmp_path, jpeg):
    path = tar_of(tmp_path / "a.tar", {"train/dog/1.jpg": jpeg, "train/cat/1.jpg": jpeg})
    found = tars(path)
    assert found.source.classes == ("cat", "dog")
    assert {entry.key: entry.labels for entry in found.entries}["a.tar:train/dog/1.jpg"] == (1,)


def test_members_that_lead_elsewhere_are_left_out(tmp_path, jpeg):
    members: dict[str, bytes | tarfile.TarInfo] = {"../../a/climbs.jpg": jpeg, "/etc/cat/absolute.jpg": jpeg}
    for name, kind in (("link.jpg", tarfile.SYMTYPE), ("hard.jpg", tarfile.LNKTYPE), ("device.jpg", tarfile.CHRTYPE)):
        member = tarfile.TarInfo(f"dog/{name}")
        member.type, member.linkname = kind, "/etc/passwd"
        members[member.name] = member
    before = set(tmp_path.rglob("*"))
    found = tars(tar_of(tmp_path / "hostile.tar", members))
    assert {reason for _, reason in found.left_out} == {"not a regular file"}
    assert len(found.left_out) == 3
    assert [found.source.read(entry) for entry in found.entries] == [jpeg, jpeg]  # names are names, not places
    assert set(tmp_path.rglob("*")) - before == {tmp_path / "hostile.tar"}


def test_a_member_that_claims_more_than_there_is(tmp_path, jpeg):
    path = tar_of(tmp_path / "a.tar", {"cat/1.jpg": jpeg})
    member = tarfile.TarInfo("cat/huge.jpg")
    member.size = 1 << 50
    blob = path.read_bytes()
    path.write_bytes(blob[: 512 + -(-len(jpeg) // 512) * 512] + member.tobuf())
    found = tars(path)
    assert [entry.key for entry in found.entries] == ["a.tar:cat/1.jpg"]
    assert found.left_out == [("a.tar:cat/huge.jpg", "truncated")]


def test_compressed_and_damaged_tars_are_refused(tmp_path, jpeg):
    path = tar_of(tmp_path / "a.tar", {"cat/1.jpg": jpeg})
    (tmp_path / "b.tar").write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(BadInput, match="not a complete tar file"):
        tars(tmp_path / "b.tar")
    (tmp_path / "c.tar").write_bytes(b"x" * 2000)
    with pytest.raises(BadInput, match="not a complete tar file"):
        tars(tmp_path / "c.tar")
    with pytest.raises(BadInput, match="no label"):
        tars(tar_of(tmp_path / "d.tar", {"1.jpg": jpeg}))


# IDX and arrays


def idx(path: Path, array: np.ndarray) -> None:
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(head + array.tobytes()) if path.suffix == ".gz" else head + array.tobytes())


def test_idx(tmp_path, make_pack):
    images = np.random.default_rng(0).integers(0, 256, (20, 28, 28), np.uint8)
    labels = np.arange(20, dtype=np.uint8) % 10
    root = tmp_path / "idx"
    root.mkdir()
    idx(root / "train-images-idx3-ubyte.gz", images)
    idx(root / "train-labels-idx1-ubyte", labels)
    with Pack.open(make_pack(root, seed=None).directory) as pack:
        assert pack.header.kind == "raw"
        assert np.array_equal(np.stack([pack.pixels(index)[..., 0] for index in range(20)]), images)
        assert pack.labels.tolist() == labels.tolist()
        assert len(pack.header.classes) == 10


def test_idx_that_lies_is_refused(tmp_path, make_pack):
    idx(tmp_path / "train-images-idx3-ubyte", np.zeros((2, 4, 4), np.uint8))
    head = struct.pack(">HBBI", 0, 8, 1, 2**32 - 1)
    for data, match in ((head, "announced"), (b"\0\0\x0d\x01", "not an IDX"), (b"", "not an IDX")):
        (tmp_path / "train-labels-idx1-ubyte").write_bytes(data)
        with pytest.raises(BadInput, match=match):
            make_pack(tmp_path)


@pytest.mark.parametrize("dtype", ["u1", "<u2", "<f4", ">u2"])
@pytest.mark.parametrize("form", ["npy", "npz"])
def test_arrays_of_any_channels_and_several_labels(tmp_path, make_pack, dtype, form):
    generator = np.random.default_rng(0)
    images = (generator.random((15, 7, 5, 12)) * 200).astype(dtype)
    labels = generator.random((15, 11)) < 0.3
    source = tmp_path / "set"
    source.mkdir()
    if form == "npz":
        source = tmp_path / "set.npz"
        np.savez_compressed(source, images=images, labels=labels)
    else:
        np.save(source / "images.npy", images)
        np.save(source / "labels.npy", labels)
    with Pack.open(make_pack(source, seed=None, shard_bytes=6000).directory) as pack:
        assert pack.header.multi_label
        assert np.array_equal(np.stack([pack.pixels(index) for index in range(15)]), images)
        assert np.array_equal(pack.labels, labels)
        assert pack.pixels(0).dtype.str == np.dtype(dtype).newbyteorder("<").str


@pytest.mark.parametrize(("source", "name"), [("arrays", "images.npy"), ("idx", "t-images-idx3-ubyte")])
@pytest.mark.parametrize("planted", ["pipe", "endless", "link"])
def test_pipes_devices_and_links_out_of_a_source_are_refused(tmp_path, source, name, planted):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "t-labels-idx1-ubyte").write_bytes(struct.pack(">HBBI", 0, 8, 1, 1) + b"\0")
    np.save(folder / "labels.npy", np.zeros(1, np.uint8))
    np.save(tmp_path / "images.npy", np.zeros((1, 2, 2), np.uint8))
    (tmp_path / "t-images-idx3-ubyte").write_bytes(struct.pack(">HBBIII", 0, 8, 3, 1, 2, 2) + bytes(4))
    (folder / name).symlink_to({"endless": Path("/dev/zero"), "link": tmp_path / name}.get(planted, tmp_path / "none"))
    if planted == "pipe":
        (folder / name).unlink()
        os.mkfifo(folder / name)
    with pytest.raises(BadInput, match=r"not a regular file|a link out of the source"):
        SOURCES.load(source)(folder)
    (folder / name).unlink()
    (tmp_path / name).rename(folder / name)
    assert len(SOURCES.load(source)(folder).entries) == 1


def test_a_list_of_names_is_a_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(BadInput, match="not a regular file"):
            only_these([], path)


def test_arrays_with_pickles_and_other_surprises_are_refused(tmp_path, make_pack):
    cases = {
        "pickle": (np.array([{}], object), np.zeros(1, int)),
        "few labels": (np.zeros((3, 2, 2), np.uint8), np.zeros(2, int)),
        "doubles": (np.zeros((3, 2, 2)), np.zeros(3, int)),
        "negative": (np.zeros((3, 2, 2), np.uint8), np.full(3, -1)),
        "twos": (np.zeros((3, 2, 2), np.uint8), np.full((3, 4), 2)),
    }
    for name, (images, labels) in cases.items():
        np.savez(tmp_path / f"{name}.npz", images=images, labels=labels)
        with pytest.raises(BadInput):
            make_pack(tmp_path / f"{name}.npz")
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000, 1000000, 3), }".ljust(117) + b"\n"
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w") as archive:
        archive.writestr("images.npy", b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header)
    with pytest.raises(BadInput, match="too large for an npz"):
        make_pack(tmp_path / "bomb.npz")


# BigEarthNet


def test_the_nineteen_classes_are_those_of_the_authors():
    """43 names, 32 of them in 19 groups, 11 in none (BigEarthNet-MM, table 1)."""
    assert len(CLASSES_43) == len(set(CLASSES_43)) == 43
    assert len(GROUPS_19) == 19
    assert len(TO_19) == sum(len(group) for _, group in GROUPS_19) == 32
    left = {CLASSES_43[number] for number in set(range(43)) - set(TO_19)}
    assert left == {
        *("Road and rail networks and associated land", "Port areas", "Airports", "Mineral extraction sites"),
        *("Dump sites", "Construction sites", "Green urban areas", "Sport and leisure facilities"),
        *("Bare rock", "Burnt areas", "Intertidal flats"),
    }
    same = [name for name, group in GROUPS_19 if len(group) == 1 and name == CLASSES_43[group[0]]]
    assert len(same) == 9  # names that were kept; "Transitional woodland/shrub" got a comma


def patch(root: Path, name: str, labels: object, generator: np.random.Generator, **bands: np.ndarray) -> None:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / f"{name}_labels_metadata.json").write_text(json.dumps({"labels": labels, "projection": "…"}))
    for band in BANDS:
        side = {"B02": 120, "B03": 120, "B04": 120, "B08": 120, "B01": 20, "B09": 20}.get(band, 60)
        values = bands.get(band, generator.integers(0, 10_000, (side, side)).astype(np.uint16))
        tags = TiffImagePlugin.ImageFileDirectory_v2()
        tags.tagtype[33550] = 12
        tags[33550] = (10.0, 10.0, 0.0)  # ModelPixelScale, as a GeoTIFF has it
        Image.fromarray(values).save(folder / f"{name}_{band}.tif", tiffinfo=tags, compression="tiff_deflate")


def test_bigearthnet(tmp_path, make_pack):
    generator = np.random.default_rng(0)
    root = tmp_path / "BigEarthNet-v1.0"
    bright = {"B08": np.full((120, 120), 65_535, np.uint16), "B01": np.full((20, 20), 40_000, np.uint16)}
    patch(root, "S2A_1_1", ["Pastures", "Sea and ocean", "Bare rock"], generator, **bright)
    patch(root, "S2A_1_2", ["Airports"], generator)
    patch(root, "S2A_1_3", ["Olive groves", "Vineyards"], generator, B02=np.zeros((120, 119), np.uint16))
    patch(root, "S2A_1_4", ["No such class"], generator)
    patch(root, "S2A_1_5", ["Vineyards", "Olive groves"], generator)
    (root / "S2A_1_5" / "S2A_1_5_B12.tif").write_bytes(b"II*\0 damaged")
    patch(root, "S2A_1_6", {"not": "a list"}, generator)
    assert guess(root) == "bigearthnet"
    for classes, kept in ((43, {"S2A_1_1", "S2A_1_2"}), (19, {"S2A_1_1"})):
        with Pack.open(make_pack(root, classes=classes, to=str(classes)).directory) as pack:
            names = pack.names()
            assert set(names) == kept
            index = names.index("S2A_1_1")
            pixels = pack.pixels(index)
            assert pixels.shape == (120, 120, 12)
            assert pixels.dtype == np.uint16
            assert (pixels[..., BANDS.index("B08")] == 65_535).all()
            assert (pixels[..., BANDS.index("B01")] == 40_000).all()
            stored = np.asarray(Image.open(root / "S2A_1_1" / "S2A_1_1_B03.tif"))
            assert np.array_equal(pixels[..., 2], stored)
            coarse = np.asarray(Image.open(root / "S2A_1_1" / "S2A_1_1_B05.tif")).astype(float)
            fine = pixels[..., BANDS.index("B05")].reshape(60, 2, 60, 2).mean((1, 3))
            assert np.corrcoef(fine.ravel(), coarse.ravel())[0, 1] > 0.95  # in place, not mirrored or shifted
            said = {pack.header.classes[number] for number in np.flatnonzero(pack.labels[index])}
        assert said == ({"Pastures", "Sea and ocean", "Bare rock"} if classes == 43 else {"Pastures", "Marine waters"})
    reasons = dict(line.split("\t") for line in (tmp_path / "19" / "skipped.txt").read_text().splitlines())
    assert reasons["S2A_1_2"] == "labels: no label remains"
    assert reasons["S2A_1_3"].startswith("a band of 119 × 120 pixels")
    assert reasons["S2A_1_4"] == reasons["S2A_1_6"] == "labels: not a list of the 43 names"
    assert reasons["S2A_1_5"] == "a band that is not a GeoTIFF, or is damaged"
    with pytest.raises(BadInput, match="43 or 19 classes"):
        SOURCES.load("bigearthnet")(root, 20)


@pytest.mark.parametrize("parts", [("train", "val"), ("Train", "test"), ("train",)])
def test_the_parts_of_a_data_set_are_not_its_classes(tmp_path, jpeg, parts):
    for part in parts:
        (tmp_path / part / "cat").mkdir(parents=True)
        (tmp_path / part / "cat" / "1.jpg").write_bytes(jpeg)
    with pytest.raises(BadInput, match="holds parts of a data set") as refused:
        guess(tmp_path)
    assert f"allpull pack {tmp_path / parts[0]} my-packs/{parts[0]}" in refused.value.hint
    assert guess(tmp_path / parts[0]) == "imagefolder"
    (tmp_path / "dog").mkdir()
    if len(parts) == 1:
        assert guess(tmp_path) == "imagefolder"  # a class may be called train
    else:
        with pytest.raises(BadInput, match=f"instead of classes: {', '.join(parts)}"):
            guess(tmp_path)  # such as labels, or what a notebook keeps


def test_bigearthnet_2_is_told_from_pictures(tmp_path):
    patch = tmp_path / "S2A_tile" / "S2A_tile_1_1"
    patch.mkdir(parents=True)
    (patch / "S2A_tile_1_1_B02.tif").write_bytes(b"")
    with pytest.raises(BadInput, match="as in BigEarthNet 2"):
        guess(tmp_path)


def test_a_source_of_links_alone_is_said_to_be_one(tmp_path, jpeg):
    store = tmp_path / "store"
    store.mkdir()
    (store / "1.jpg").write_bytes(jpeg)
    folders, files = tmp_path / "folders", tmp_path / "files"
    folders.mkdir()
    (files / "a").mkdir(parents=True)
    (folders / "a").symlink_to(store)
    (files / "a" / "1.jpg").symlink_to(store / "1.jpg")
    for root, words in ((folders, "all 1 class folders are links"), (files, "no images in its 1 folders")):
        with pytest.raises(BadInput, match=words) as refused:
            image_folder(root)
        assert "links out of SRC are not followed" in refused.value.hint
