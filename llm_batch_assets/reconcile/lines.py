"""Cut a result file into lines: on the byte 0x0A only, in blocks, with no copy of the whole file.

``str.splitlines``, SDK iterators and several readers also cut at U+2028, U+2029 and U+0085, which
are legal inside JSON strings (field report B60).
"""

from __future__ import annotations

from collections.abc import Iterator
from mmap import MADV_DONTNEED, mmap

from llm_batch_assets.reconcile.model import RawFile

BLOCK = 2**19
_BOM = b"\xef\xbb\xbf"
_OTHER_ENCODINGS = (b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")
"""UTF-16, UTF-32, and compressed files that were declared as none: no line of them is read."""


def unreadable_file(data: bytes | mmap | memoryview) -> bool:
    """Whether a file is no UTF-8 text at all: no guessing (case 054)."""
    head = bytes(data[:4])
    return head.startswith(_OTHER_ENCODINGS) or b"\x00" in head


def blocks(raw: RawFile, size: int = BLOCK) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of whole lines, about ``size`` bytes at a time; linear in the file's length.

    Every block but the last ends with a newline. One byte order mark at offset 0 is skipped.
    """
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
        yield at, piece
        at += len(piece)
        if isinstance(data, mmap) and at - released > 16 * size:
            # Pages that were read would count as this process's memory until it ends.
            page = at // 4096 * 4096
            data.madvise(MADV_DONTNEED, released, page - released)
            released = page
