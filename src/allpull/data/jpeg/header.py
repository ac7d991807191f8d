"""Parse the header of an untrusted JPEG (ITU-T T.81, annex B)."""

from __future__ import annotations

from dataclasses import dataclass

from allpull.data.pack_format import Buffer

SOI, EOI, SOS, DHT, DRI, APP0, APP14 = 0xD8, 0xD9, 0xDA, 0xC4, 0xDD, 0xE0, 0xEE
BASELINE, EXTENDED, PROGRESSIVE = 0xC0, 0xC1, 0xC2
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
MAX_MARKERS = 4096  # before the first scan; a photograph has a dozen


class NotJpeg(ValueError):
    """These bytes are not a JPEG that can be parsed; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One colour plane: its number, its sampling factors, and its Huffman tables in the first scan (−1: not in it)."""

    number: int
    across: int
    down: int
    dc_table: int = -1
    ac_table: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class JpegHeader:
    """The header up to the first scan.

    ``size_at`` is the offset of the frame's height and width, ``scan_at`` that of the entropy-coded data;
    ``markers`` are (code, first byte of the payload, bytes of it), in order, the scan's own last.
    """

    frame: int
    precision: int
    height: int
    width: int
    components: tuple[Component, ...]
    interval: int
    size_at: int
    scan_at: int
    whole_scan: bool
    markers: tuple[tuple[int, int, int], ...]

    @property
    def mcu(self) -> tuple[int, int]:
        """Height and width in pixels of an MCU (minimum coded unit); one block if there is one component."""
        if len(self.components) == 1:
            return 8, 8
        return 8 * max(one.down for one in self.components), 8 * max(one.across for one in self.components)

    @property
    def subsampled(self) -> bool:
        """Whether planes differ in resolution, so that decoders interpolate between MCUs."""
        return len({(one.across, one.down) for one in self.components}) > 1


def parse_jpeg(data: Buffer) -> JpegHeader:
    """The header of ``data``.

    Raises:
        NotJpeg: it is not a JPEG, is truncated, or contradicts itself.
    """
    if bytes(data[:2]) != b"\xff\xd8":
        raise NotJpeg("does not start like a JPEG")
    markers: list[tuple[int, int, int]] = []
    at, interval = 2, 0
    frame: tuple[int, int, int] | None = None
    while len(markers) < MAX_MARKERS:
        code, payload, length = _marker(data, at)
        at = payload + length
        markers.append((code, payload, length))
        if code in FRAMES:
            if frame is not None:
                raise NotJpeg("two frames")
            frame = code, payload, length
        elif code == DRI and length >= 2:
            interval = int.from_bytes(data[payload : payload + 2], "big")
        elif code == SOS:
            if frame is None:
                raise NotJpeg("a scan without a frame")
            return _header(data, frame, (payload, length), interval, tuple(markers))
    raise NotJpeg("too many markers")


def _marker(data: Buffer, at: int) -> tuple[int, int, int]:
    size = len(data)
    while at + 1 < size and data[at] == 0xFF and data[at + 1] == 0xFF:  # fill bytes
        at += 1
    if at + 4 > size or data[at] != 0xFF:
        raise NotJpeg("truncated in its header" if at + 4 > size else "a marker is missing")
    code = data[at + 1]
    length = int.from_bytes(data[at + 2 : at + 4], "big")
    if code < 0xC0 or 0xD0 <= code <= EOI:
        raise NotJpeg(f"a marker {code:02x} in its header")
    if length < 2 or at + 2 + length > size:
        raise NotJpeg("truncated in its header")
    return code, at + 4, length - 2


def _header(
    data: Buffer,
    frame: tuple[int, int, int],
    scan: tuple[int, int],
    interval: int,
    markers: tuple[tuple[int, int, int], ...],
) -> JpegHeader:
    code, at, length = frame
    count = data[at + 5] if length >= 6 else 0
    if not 1 <= count <= 4 or length < 6 + 3 * count:
        raise NotJpeg(f"{count} components")
    height, width = int.from_bytes(data[at + 1 : at + 3], "big"), int.from_bytes(data[at + 3 : at + 5], "big")
    if height == 0 or width == 0:
        raise NotJpeg(f"{width} × {height} pixels")
    tables = _scan_tables(data, *scan)
    components = []
    for index in range(count):
        number, sampling = data[at + 6 + 3 * index], data[at + 7 + 3 * index]
        across, down = sampling >> 4, sampling & 15
        if not (1 <= across <= 4 and 1 <= down <= 4):
            raise NotJpeg("impossible sampling factors")
        dc_table, ac_table = tables.get(number, (-1, -1))
        components.append(Component(number=number, across=across, down=down, dc_table=dc_table, ac_table=ac_table))
    spectral = bytes(data[scan[0] + scan[1] - 3 : scan[0] + scan[1]])
    return JpegHeader(
        frame=code,
        precision=data[at],
        height=height,
        width=width,
        components=tuple(components),
        interval=interval,
        size_at=at + 1,
        scan_at=scan[0] + scan[1],
        whole_scan=list(tables) == [one.number for one in components] and spectral == b"\0\x3f\0",
        markers=markers,
    )


def _scan_tables(data: Buffer, at: int, length: int) -> dict[int, tuple[int, int]]:
    count = data[at] if length else 0
    if not 1 <= count <= 4 or length != 4 + 2 * count:
        raise NotJpeg("a damaged scan header")
    pairs = [(data[at + 1 + 2 * index], data[at + 2 + 2 * index]) for index in range(count)]
    return {number: (tables >> 4, tables & 15) for number, tables in pairs}
