"""Cut a result file into lines: on the byte 0x0A only, in blocks, with no copy of the whole file.

``str.splitlines``, SDK iterators and several readers also cut at U+2028, U+2029 and U+0085, which
are legal inside JSON strings (field report B60).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from mmap import MADV_DONTNEED, mmap

import numpy as np

from llm_batch_assets.reconcile.model import RawFile

BLOCK = 2 * 2**20
_BOM = b"\xef\xbb\xbf"
_OTHER_ENCODINGS = (b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")
"""UTF-16, UTF-32, and compressed files that were declared as none: no line of them is read."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some whole lines of a file.

    Attributes:
        starts: offset of every line in the file.
        lengths: bytes of every line.
        lines: bytes without the newline and without carriage returns before it.
        colons: number of colons of every line; -1 for a line that writes a colon as an escape, so
            that no count proves anything of it.
    """

    starts: np.ndarray = field(repr=False)
    lengths: np.ndarray = field(repr=False)
    lines: list[bytes] = field(repr=False)
    colons: list[int] = field(repr=False)


def unreadable_file(data: bytes | mmap | memoryview) -> bool:
    """Whether a file is no UTF-8 text at all: no guessing (case 054)."""
    head = bytes(data[:4])
    return head.startswith(_OTHER_ENCODINGS) or b"\x00" in head


def blocks(raw: RawFile, size: int = BLOCK) -> Iterator[Block]:
    """The file's lines in blocks of about ``size`` bytes. Linear in the file's length."""
    data = raw.data
    total = len(data)
    at = 3 if bytes(data[:3]) == _BOM else 0
    released = 0
    while at < total:
        end = min(at + size, total)
        piece = bytes(data[at:end])
        if end < total:
            cut = piece.rfind(b"\n") + 1
            if cut:
                piece = piece[:cut]
            else:
                rest = [piece]
                while end < total:
                    more = bytes(data[end : end + size])
                    cut = more.find(b"\n") + 1
                    rest.append(more[:cut] if cut else more)
                    end += len(rest[-1])
                    if cut:
                        break
                piece = b"".join(rest)
        yield _block(piece, at)
        at += len(piece)
        if isinstance(data, mmap) and at - released > 16 * size:
            # Pages that were read would count as this process's memory until it ends.
            page = at // 4096 * 4096
            data.madvise(MADV_DONTNEED, released, page - released)
            released = page


def _block(piece: bytes, offset: int) -> Block:
    lines = piece.split(b"\n")
    octets = np.frombuffer(piece, np.uint8)
    ends = np.flatnonzero(octets == 10)
    if lines[-1] == b"":
        lines.pop()
    else:
        ends = np.append(ends, len(piece))
    starts = np.zeros(len(ends), np.int64)
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts
    colons = np.diff(np.searchsorted(np.flatnonzero(octets == 58), ends), prepend=0)
    if b"\r" in piece:
        lines = [line.rstrip(b"\r") for line in lines]
        lengths = np.array([len(line) for line in lines], np.int64)
    colons[_escaped_colons(octets, ends)] = -1
    return Block(starts + offset, lengths, lines, colons.tolist())


def _escaped_colons(octets: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Lines that write a colon as an escape (backslash, u003a, in either case)."""
    at = np.flatnonzero(octets == 92)
    at = at[at < len(octets) - 5]
    for distance, byte in ((1, 117), (2, 48), (3, 48), (4, 51)):
        at = at[octets[at + distance] == byte]
    return np.searchsorted(ends, at[(octets[at + 5] | 32) == 97])
