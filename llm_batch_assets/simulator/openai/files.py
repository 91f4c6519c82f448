"""``/v1/files``: upload, get, list, delete and content."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from llm_batch_assets.simulator.app import Call, json_reply
from llm_batch_assets.simulator.openai.wire import account_of, check, refuse
from llm_batch_assets.simulator.ranges import etag_of, ranged
from llm_batch_assets.simulator.transport import Reply
from llm_batch_assets.simulator.world import World

_PURPOSES = ("batch", "assistants", "fine-tune", "vision", "user_data", "evals")
_FILE_LIMIT = 512_000_000
_RETENTION = 30 * 86_400


@dataclass(slots=True)
class File:
    """A stored file; ``expires`` in virtual unix seconds."""

    id: str
    account: str
    data: bytes = field(repr=False)
    filename: str
    purpose: str
    created: float
    expires: float | None
    etag: str = ""

    def view(self) -> dict[str, Any]:
        """The file object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": len(self.data),
            "created_at": int(self.created),
            "expires_at": None if self.expires is None else int(self.expires),
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


class Files:
    """The files of every account."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.files: dict[str, File] = {}

    def add(
        self, account: str, data: bytes, filename: str, purpose: str, expires: float | None
    ) -> File:
        """Keep a file."""
        made = File(
            id=self._world.new_id("file-"),
            account=account,
            data=data,
            filename=filename,
            purpose=purpose,
            created=self._world.clock.now(),
            expires=expires,
            etag=etag_of(data),
        )
        self.files[made.id] = made
        return made

    def find(self, account: str, file_id: str) -> File | None:
        """A live file of an account."""
        found = self.files.get(file_id)
        if found is None or found.account != account:
            return None
        if found.expires is not None and self._world.clock.now() >= found.expires:
            return None
        return found

    def require(self, account: str, file_id: str) -> File:
        """A live file, or the refusal that the API gives."""
        found = self.find(account, file_id)
        if found is None:
            refuse(404, f"No such File object: {file_id}", "id")
        return found

    async def upload(self, call: Call) -> Reply:
        """``POST /v1/files``."""
        account = account_of(call)
        check(
            call.headers.get("content-type", "").startswith("multipart/form-data"),
            "Could not parse multipart form", None,
        )  # fmt: skip
        form = await call.request().form(max_part_size=_FILE_LIMIT)
        purpose, part = form.get("purpose"), form.get("file")
        check(purpose is not None, "'purpose' is a required property", "purpose")
        check(purpose in _PURPOSES, f"'{purpose}' is not one of {list(_PURPOSES)}", "purpose")
        if part is None or isinstance(part, str):
            refuse(400, "'file' is a required property", "file")
        data = await part.read()
        name = part.filename or "file"
        call.entry.notes |= {
            "file_sha256": sha256(data).hexdigest(),
            "file_bytes": len(data),
            "filename": name,
        }
        check(len(data) <= _FILE_LIMIT, "File exceeds the maximum size of 512 MB", "file")
        if purpose == "batch":
            check(
                name.endswith(".jsonl"),
                "Invalid file format for Batch API. Must be .jsonl", "file",
            )  # fmt: skip
            limit = call.world.options.max_input_bytes
            check(len(data) <= limit, f"Batch input files are limited to {limit} bytes", "file")
        now = call.world.clock.now()
        lifetime = self._lifetime(form) or (_RETENTION if purpose == "batch" else None)
        made = self.add(
            account, data, name, str(purpose), None if lifetime is None else now + lifetime
        )
        call.entry.notes["made"] = made.id
        return json_reply(made.view())

    @staticmethod
    def _lifetime(form: Any) -> int | None:
        anchor, seconds = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
        if anchor is None and seconds is None:
            return None
        check(anchor == "created_at", "expires_after.anchor must be 'created_at'", "expires_after")
        check(
            bool(re.fullmatch(r"\d+", str(seconds))) and 3600 <= int(str(seconds)) <= 2_592_000,
            "expires_after.seconds must be between 3600 and 2592000", "expires_after",
        )  # fmt: skip
        return int(str(seconds))

    async def get(self, call: Call) -> Reply:
        """``GET /v1/files/{id}``."""
        return json_reply(self.require(account_of(call), call.path["id"]).view())

    async def delete(self, call: Call) -> Reply:
        """``DELETE /v1/files/{id}``."""
        found = self.require(account_of(call), call.path["id"])
        del self.files[found.id]
        return json_reply({"id": found.id, "object": "file", "deleted": True})

    async def list_all(self, call: Call) -> Reply:
        """``GET /v1/files``."""
        account = account_of(call)
        limit = call.query.get("limit", "10000")
        check(limit.isdigit() and 1 <= int(limit) <= 10_000, "Invalid 'limit'", "limit")
        order = call.query.get("order", "desc")
        check(order in ("asc", "desc"), "Invalid 'order'", "order")
        now = call.world.clock.now()
        found = [
            one
            for one in self.files.values()
            if one.account == account
            and call.query.get("purpose", one.purpose) == one.purpose
            and (one.expires is None or now < one.expires)
        ]
        if order == "desc":
            found.reverse()
        return json_reply(page(found, call.query.get("after"), int(limit)))

    async def content(self, call: Call) -> Reply:
        """``GET /v1/files/{id}/content``."""
        found = self.require(account_of(call), call.path["id"])
        owner = next(
            (
                job
                for job in call.world.jobs.values()
                if found.id in (job.extra.get("output_file_id"), job.extra.get("error_file_id"))
            ),
            None,
        )
        if owner is not None and owner.fault("lost_result"):
            refuse(404, f"No such File object: {found.id}", "id")
        return ranged(
            call,
            found.data,
            "application/octet-stream",
            found.etag,
            enabled=call.world.options.ranges,
        )


def page(items: list[Any], after: str | None, limit: int) -> dict[str, Any]:
    """A list envelope: what follows ``after``."""
    start = 0
    if after is not None:
        start = next((i + 1 for i, one in enumerate(items) if one.id == after), len(items))
    part = items[start : start + limit]
    return {
        "object": "list",
        "data": [one.view() for one in part],
        "first_id": part[0].id if part else None,
        "last_id": part[-1].id if part else None,
        "has_more": start + limit < len(items),
    }
