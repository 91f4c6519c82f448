"""Comparing what was frozen with what a table says now."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class Drift:
    """How many records are new, ask something else, or are gone."""

    added: int
    changed: int
    removed: int

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


def drift(old: pa.Table, new: pa.Table) -> Drift:
    """Compare two tables of record_id, business_key, source_version and request_digest.

    A record is the same by (business_key, source_version), which stays where a changed prompt or
    config gives another record_id; it is changed where record_id or request_digest differ.
    """
    before, after = _keyed(old, "old"), _keyed(new, "new")
    both = before.join(after, keys="key", join_type="inner")
    same = pc.and_(
        pc.equal(both["old_id"], both["new_id"]),
        pc.equal(both["old_request"], both["new_request"]),
    )
    common = both.num_rows
    return Drift(
        added=new.num_rows - common,
        changed=common - (pc.sum(same).as_py() or 0),
        removed=old.num_rows - common,
    )


def _keyed(table: pa.Table, side: str) -> pa.Table:
    # Null joins with nothing, so a missing version gets a text that no version can be: with the
    # length of the key in front, no two pairs give one text.
    large = pa.large_string()
    key, version = table["business_key"].cast(large), table["source_version"].cast(large)
    marked = pc.binary_join_element_wise(
        pc.if_else(pc.is_null(version), pa.scalar("-", large), pa.scalar("+", large)),
        pc.fill_null(version, pa.scalar("", large)),
        pa.scalar("", large),
    )
    length = pc.utf8_length(key).cast(large)
    return pa.table(
        {
            "key": pc.binary_join_element_wise(length, key, marked, pa.scalar(":", large)),
            f"{side}_id": table["record_id"].cast(large),
            f"{side}_request": table["request_digest"].cast(large),
        }
    )
