"""Result files from rows: order, extra lines and the odd formats that readers must survive."""

from __future__ import annotations

import random
from collections.abc import Sequence

from llm_batch_assets.simulator.faults import BatchFault

_LONG = 16_000_000


def _with(row: bytes, members: bytes) -> bytes:
    """A row with more members, if it is a whole object."""
    return row[:-1] + b"," + members + b"}" if row.endswith(b"}") else row


def compose(
    rows: Sequence[bytes], faults: Sequence[BatchFault], rng: random.Random, *, shuffle: bool
) -> bytes:
    """One result file.

    Args:
        rows: Lines without their newline, in request order.
        faults: The batch's own faults; those that are not about a file's format are ignored.
        rng: Seeded for this file.
        shuffle: Order is not a contract anywhere, so the default is to break it.
    """
    kinds = {fault.kind for fault in faults}
    lines = list(rows)
    for fault in faults:
        if fault.kind == "extra_fields":
            lines = [_with(row, b'"vendor_note":{"a":[null]},"trace":null') for row in lines]
        elif fault.kind == "long_line":
            for index in rng.sample(range(len(lines)), min(fault.count, len(lines))):
                lines[index] = _with(lines[index], b'"padding":"' + b"x" * _LONG + b'"')
        elif fault.kind == "garbage_line":
            for _ in range(fault.count):
                lines.append(b'{"id": "' + rng.randbytes(6).hex().encode() + b'", "custom')
    if shuffle and "ordered" not in kinds:
        rng.shuffle(lines)
    if not lines:
        return b""
    if "blank_lines" in kinds:
        for _ in range(1 + len(lines) // 10):
            lines.insert(rng.randrange(len(lines) + 1), rng.choice([b"", b"  "]))
    end = b"\r\n" if "crlf" in kinds else b"\n"
    data = end.join(lines) + (b"" if "no_final_newline" in kinds else end)
    return b"\xef\xbb\xbf" + data if "bom" in kinds else data
