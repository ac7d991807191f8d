"""Restart markers for baseline JPEGs without jpegtran: entropy-coded bits are copied, only some DC codes change.

Plain Python walks the Huffman codes to find the start of each block (T.81, F.2.2); numpy then moves the bits. The first
block of each component after a marker codes its DC coefficient itself instead of a difference, so only these codes are
re-encoded. Five times slower than jpegtran: about 25 ms for a photograph of 0.2 megapixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from allpull.data.jpeg.header import APP0, APP14, BASELINE, DHT, DRI, EXTENDED, JpegHeader, NotJpeg

Codes = dict[int, tuple[int, int]]  # symbol → (code, bits)
Ints = npt.NDArray[np.int64]

END_OF_BLOCK = 1000  # added to the coefficient's number; more than any run
STANDARD_DC = bytes([0, 1, 5, 1, 1, 1, 1, 1, 1, *[0] * 7]), bytes(range(12))  # T.81, table K.3: has every category
SPARE_BYTES = 1 << 10  # after the data, so that a damaged block reads zeros instead of past the array


@dataclass(slots=True, kw_only=True)
class Blocks:
    """Blocks in coding order: bit offsets of DC code, AC codes and end; DC differences."""

    dc_at: list[int]
    ac_at: list[int]
    end_at: list[int]
    difference: list[int]


def transcode(jpeg: bytes, header: JpegHeader, interval: int) -> bytes:
    """``jpeg`` with a restart marker after each ``interval`` MCUs; metadata other than JFIF's and Adobe's is dropped.

    Raises:
        NotJpeg: not one baseline scan, or damaged.
    """
    if header.frame not in (BASELINE, EXTENDED) or not header.whole_scan or header.precision != 8:
        raise NotJpeg("progressive or in several scans: install jpegtran (Debian: libjpeg-turbo-progs) for these")
    tables = _tables(jpeg, header)
    stream, begins = _entropy_segments(jpeg, header)
    pattern = _pattern(header)
    height, width = header.mcu
    count = -(-header.height // height) * -(-header.width // width)
    blocks = _walk(stream, begins, header, tables, count)
    of_component = np.tile(np.array(pattern), count)
    unit = np.repeat(np.arange(count), len(pattern))
    old_reset = unit // (header.interval or count)
    new_reset = unit // interval
    difference = np.array(blocks.difference)
    wanted = _new_differences(difference, of_component, old_reset, new_reset)
    replaced = _replace_tables(tables, header, wanted, of_component)
    changed = (wanted != difference) | np.isin(of_component, replaced)
    codes = [tables[0, one.dc_table] for one in header.components]
    segments = _move_bits(stream, blocks, (np.flatnonzero(changed), wanted, of_component, codes), new_reset)
    lost = {header.components[index].dc_table for index in replaced}
    return _joined(_new_header(jpeg, header, interval, lost), segments)


def _pattern(header: JpegHeader) -> list[int]:
    """The component of each block of one MCU."""
    if len(header.components) == 1:
        return [0]
    return [index for index, one in enumerate(header.components) for _ in range(one.across * one.down)]


def _tables(jpeg: bytes, header: JpegHeader) -> dict[tuple[int, int], Codes]:
    """(class, number) → codes; class 0 is DC, 1 is AC."""
    tables: dict[tuple[int, int], Codes] = {}
    for code, at, length in header.markers:
        here, end = at, at + length
        while code == DHT and here < end:
            counts = jpeg[here + 1 : here + 17]
            symbols = jpeg[here + 17 : here + 17 + sum(counts)]
            if here + 17 + len(symbols) > end or len(symbols) != sum(counts) or len(counts) != 16:
                raise NotJpeg("a damaged Huffman table")
            tables[jpeg[here] >> 4, jpeg[here] & 15] = _codes(counts, symbols)
            here += 17 + len(symbols)
    for one in header.components:
        if (0, one.dc_table) not in tables or (1, one.ac_table) not in tables:
            raise NotJpeg("a Huffman table is missing")
    return tables


def _codes(counts: bytes, symbols: bytes) -> Codes:
    codes: Codes = {}
    code = index = 0
    for bits, count in enumerate(counts, start=1):
        for _ in range(count):
            codes[symbols[index]] = code, bits
            code, index = code + 1, index + 1
        if code > 1 << bits:
            raise NotJpeg("an impossible Huffman table")
        code <<= 1
    return codes


def _entropy_segments(jpeg: bytes, header: JpegHeader) -> tuple[bytes, list[int]]:
    """All entropy-coded bytes without stuffing and markers, and the offset of each segment (and of the end)."""
    scan = np.frombuffer(jpeg, np.uint8, offset=header.scan_at)
    places = np.flatnonzero((scan[:-1] == 0xFF) & (scan[1:] != 0))
    parts: list[bytes] = []
    begins, start = [0], 0
    for place in places.tolist():
        marker = int(scan[place + 1])
        if marker == 0xFF:
            continue  # a fill byte
        part = scan[start:place].tobytes().rstrip(b"\xff").replace(b"\xff\0", b"\xff")
        parts.append(part)
        begins.append(begins[-1] + len(part))
        start = place + 2
        if not 0xD0 <= marker <= 0xD7:
            if marker != 0xD9:
                raise NotJpeg("more than one scan")
            return b"".join(parts), begins
    raise NotJpeg("truncated: it has no end marker")


def _lookup(codes: Codes, *, dc: bool) -> list[int]:
    """For each 16 bits: bits of code and value × 2¹² + how far the coefficient's number moves (DC: its category)."""
    table = np.zeros(1 << 16, np.int64)
    for symbol, (code, bits) in codes.items():
        run, size = symbol >> 4, symbol & 15
        if dc:
            entry = bits << 12 | symbol if symbol <= 11 else 0
        elif size == 0:
            entry = bits << 12 | (16 if run == 15 else END_OF_BLOCK)
        else:
            entry = (bits + size) << 12 | (run + 1)
        table[code << (16 - bits) : (code + 1) << (16 - bits)] = entry
    entries: list[int] = table.tolist()
    return entries


def _walk(
    stream: bytes, begins: list[int], header: JpegHeader, tables: dict[tuple[int, int], Codes], count: int
) -> Blocks:
    padded = np.frombuffer(stream + b"\0" * SPARE_BYTES, np.uint8).astype(np.int64)
    windows: list[int] = (padded[:-2] << 16 | padded[1:-1] << 8 | padded[2:]).tolist()
    lookups = {
        (kind, number): _lookup(codes, dc=kind == 0) for (kind, number), codes in tables.items() if kind in (0, 1)
    }
    pair = [(lookups[0, one.dc_table], lookups[1, one.ac_table]) for one in header.components]
    unit = [pair[index] for index in _pattern(header)]
    blocks = Blocks(dc_at=[], ac_at=[], end_at=[], difference=[])
    each = header.interval or count
    if len(begins) - 1 != -(-count // each):
        raise NotJpeg("restart markers are missing, or there are too many")
    for number in range(len(begins) - 1):
        inside = min(each, count - number * each)
        _walk_segment(windows, (8 * begins[number], 8 * begins[number + 1]), unit * inside, blocks)
    return blocks


def _walk_segment(
    windows: list[int], bounds: tuple[int, int], unit: list[tuple[list[int], list[int]]], blocks: Blocks
) -> None:
    """Find the start of each block of one segment. The hot loop: local variables and no calls."""
    at, end = bounds
    dc_at, ac_at, end_at, difference = blocks.dc_at, blocks.ac_at, blocks.end_at, blocks.difference
    for dc, ac in unit:
        dc_at.append(at)
        entry = dc[windows[at >> 3] >> (8 - (at & 7)) & 0xFFFF]
        at += entry >> 12
        category = entry & 0xFFF
        value = windows[at >> 3] >> (24 - (at & 7) - category) & ((1 << category) - 1)
        at += category
        difference.append(value if value >> (category - 1) else value - (1 << category) + 1) if category else (
            difference.append(0)
        )
        ac_at.append(at)
        number, moved = 1, entry
        while number < 64 and moved:
            moved = ac[windows[at >> 3] >> (8 - (at & 7)) & 0xFFFF]
            at += moved >> 12
            number += moved & 0xFFF
        if not moved or at > end or 64 < number < END_OF_BLOCK:
            raise NotJpeg("its entropy-coded data are damaged")
        end_at.append(at)
    if end - at >= 8:
        raise NotJpeg("its entropy-coded data have a wrong end")


def _new_differences(difference: Ints, of_component: Ints, old_reset: Ints, new_reset: Ints) -> Ints:
    """DC differences if prediction is reset at ``new_reset`` instead of ``old_reset``."""
    wanted = np.empty_like(difference)
    for component in range(int(of_component.max()) + 1):
        mine = np.flatnonzero(of_component == component)
        values = np.cumsum(difference[mine])
        first = np.diff(old_reset[mine], prepend=-1) != 0
        before = np.where(first, values - difference[mine], 0)[np.flatnonzero(first)]
        values -= np.repeat(before, np.diff(np.append(np.flatnonzero(first), len(mine))))
        fresh = np.diff(new_reset[mine], prepend=-1) != 0
        wanted[mine] = np.where(fresh, values, np.diff(values, prepend=0))
    return wanted


def _categories(values: Ints) -> Ints:
    return np.frexp(np.abs(values).astype(np.float64))[1].astype(np.int64)


def _replace_tables(
    tables: dict[tuple[int, int], Codes], header: JpegHeader, wanted: Ints, of_component: Ints
) -> list[int]:
    """Components whose DC table lacks a required code: they get the standard table, also in ``tables``."""
    needed = _categories(wanted)
    if needed.max() > 11:
        raise NotJpeg("DC coefficients out of range")
    missing = {
        one.dc_table
        for index, one in enumerate(header.components)
        if not set(np.unique(needed[of_component == index]).tolist()) <= set(tables[0, one.dc_table])
    }
    for number in missing:
        tables[0, number] = _codes(*STANDARD_DC)
    return [index for index, one in enumerate(header.components) if one.dc_table in missing]


def _move_bits(
    stream: bytes, blocks: Blocks, recoded: tuple[Ints, Ints, Ints, list[Codes]], segment: Ints
) -> list[bytes]:
    """The new segments: bits of all blocks, changed DC codes from ``recoded``, padded with ones to whole bytes."""
    changed, wanted, of_component, codes = recoded
    pool: list[str] = []
    begins, lengths, used = [], [], 8 * len(stream)
    for block in changed.tolist():
        value = int(wanted[block])
        category = abs(value).bit_length()
        code, bits = codes[int(of_component[block])][category]
        text = f"{code:0{bits}b}"
        if category:
            text += f"{value if value > 0 else value + (1 << category) - 1:0{category}b}"
        pool.append(text)
        begins.append(used)
        lengths.append(len(text))
        used += len(text)
    fresh = np.frombuffer(("".join(pool) + "1" * 8).encode("ascii"), np.uint8) - ord("0")
    bits_in = np.concatenate([np.unpackbits(np.frombuffer(stream, np.uint8)), fresh])
    dc_at, ac_at, end_at = (np.array(part) for part in (blocks.dc_at, blocks.ac_at, blocks.end_at))
    dc_length = ac_at - dc_at
    dc_at[changed], dc_length[changed] = begins, lengths
    total = np.bincount(segment, dc_length + end_at - ac_at).astype(np.int64)
    padding = -total % 8
    last = np.append(np.flatnonzero(np.diff(segment)), len(segment) - 1) + 1  # padding follows these blocks
    starts = np.insert(np.stack([dc_at, ac_at], 1).ravel(), 2 * last, used)
    counts = np.insert(np.stack([dc_length, end_at - ac_at], 1).ravel(), 2 * last, padding)
    to = np.cumsum(counts) - counts
    source = np.repeat(starts - to, counts) + np.arange(int(counts.sum()))
    packed = np.packbits(bits_in[source]).tobytes()
    ends = np.cumsum((total + padding) // 8).tolist()
    return [packed[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _new_header(jpeg: bytes, header: JpegHeader, interval: int, lost: set[int]) -> bytes:
    parts = [b"\xff\xd8"]
    for code, at, length in header.markers[:-1]:
        if code == DRI or (code >= APP0 and code not in (APP0, APP14)):
            continue
        parts.append(jpeg[at - 4 : at + length])
    for number in sorted(lost):
        counts, symbols = STANDARD_DC
        parts.append(b"\xff\xc4" + (19 + len(symbols)).to_bytes(2, "big") + bytes([number]) + counts + symbols)
    parts.append(b"\xff\xdd\0\4" + interval.to_bytes(2, "big"))
    _, at, length = header.markers[-1]
    parts.append(jpeg[at - 4 : at + length])
    return b"".join(parts)


def _joined(head: bytes, segments: list[bytes]) -> bytes:
    parts = [head]
    for number, segment in enumerate(segments):
        parts.append(segment.replace(b"\xff", b"\xff\0"))
        parts.append(bytes([0xFF, 0xD0 + number % 8]))
    parts[-1] = b"\xff\xd9"
    return b"".join(parts)
