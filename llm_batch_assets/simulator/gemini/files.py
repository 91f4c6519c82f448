"""Files: resumable upload to a URL of our own, get, list, delete and download."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from llm_batch_assets.simulator.app import Call, json_reply
from llm_batch_assets.simulator.clock import rfc3339
from llm_batch_assets.simulator.dice import digest
from llm_batch_assets.simulator.gemini import wire
from llm_batch_assets.simulator.ranges import etag_of, ranged
from llm_batch_assets.simulator.transport import Reply
from llm_batch_assets.simulator.world import World

_LIFETIME = 48 * 3600.0
_FILE_LIMIT = 2_000_000_000
_LONGEST_ID = 40


@dataclass(slots=True)
class File:
    """A stored file; ``generated`` ones are results: only these can be downloaded."""

    id: str
    account: str
    data: bytes = field(repr=False)
    display_name: str
    mime_type: str
    created: float
    expires: float
    generated: bool
    etag: str = ""

    def view(self) -> dict[str, Any]:
        """The file object."""
        shown = {
            "name": f"files/{self.id}",
            "displayName": self.display_name,
            "mimeType": self.mime_type,
            "sizeBytes": str(len(self.data)),
            "createTime": rfc3339(self.created),
            "updateTime": rfc3339(self.created),
            "expirationTime": rfc3339(self.expires),
            "sha256Hash": base64.b64encode(sha256(self.data).hexdigest().encode()).decode(),
            "uri": f"https://generativelanguage.googleapis.com/v1beta/files/{self.id}",
            "state": "ACTIVE",
            "source": "GENERATED" if self.generated else "UPLOADED",
        }
        return {name: value for name, value in shown.items() if value != ""}


@dataclass(slots=True)
class _Session:
    account: str
    display_name: str
    mime_type: str
    size: int
    data: bytearray = field(default_factory=bytearray)


class Files:
    """The files of every project."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.files: dict[str, File] = {}
        self._sessions: dict[str, _Session] = {}

    def add(
        self, account: str, data: bytes, display_name: str, mime_type: str, *, generated: bool
    ) -> File:
        """Keep a file for 48 hours. A result's id is longer than the get call accepts."""
        serial = self._world.new_id("", length=12)
        if generated:
            serial = f"batch-{digest(self._world.seed, serial)[:48]}"
        now = self._world.clock.now()
        hours = self._world.options.gemini_result_hours * 3600.0 if generated else _LIFETIME
        made = File(
            serial,
            account,
            data,
            display_name,
            mime_type,
            now,
            now + hours,
            generated,
            etag_of(data),
        )
        self.files[made.id] = made
        return made

    def find(self, account: str, name: str) -> File | None:
        """A live file by ``files/<id>`` or id."""
        found = self.files.get(name.removeprefix("files/"))
        if found is None or found.account != account:
            return None
        return found if self._world.clock.now() < found.expires else None

    async def start(self, call: Call) -> Reply:
        """``POST /upload/{version}/files``: open a session."""
        account = wire.account_of(call)
        headers = call.headers
        wire.check(headers.get("x-goog-upload-protocol") == "resumable", "Only resumable uploads.")
        wire.check(headers.get("x-goog-upload-command") == "start", "A session begins with start.")
        size = headers.get("x-goog-upload-header-content-length", "")
        wire.check(size.isdigit(), "X-Goog-Upload-Header-Content-Length is required.")
        wire.check(int(size) <= _FILE_LIMIT, "The file exceeds 2 GB.")
        described = wire.field(wire.json_object(call.body), "file", {})
        mime = wire.field(described, "mimeType") or headers.get(
            "x-goog-upload-header-content-type", ""
        )
        wire.check(bool(mime), "Unable to determine the mime type.")
        name = self._world.new_id("upload-", length=20)
        self._sessions[name] = _Session(
            account, str(wire.field(described, "displayName", "")), str(mime), int(size)
        )
        call.entry.notes["session"] = name
        url = f"{call.origin}{call.entry.path}/{name}?upload_protocol=resumable"
        return Reply(200, b"", {"x-goog-upload-url": url, "x-goog-upload-status": "active"})

    async def data(self, call: Call) -> Reply:
        """``POST <upload url>``: one chunk, without a credential; the last one finalizes."""
        session = self._sessions.get(call.path["session"])
        if session is None:
            wire.refuse(404, "Upload session not found.")
        commands = {one.strip() for one in call.headers.get("x-goog-upload-command", "").split(",")}
        if "query" in commands:
            received = {"x-goog-upload-size-received": str(len(session.data))}
            return Reply(200, b"", {"x-goog-upload-status": "active", **received})
        offset = call.headers.get("x-goog-upload-offset", "0")
        wire.check(offset == str(len(session.data)), "The offset is not what was received.")
        if "upload" in commands:
            session.data += call.body
        if "finalize" not in commands:
            return Reply(200, b"", {"x-goog-upload-status": "active"})
        wire.check(len(session.data) == session.size, "Fewer or more bytes than announced.")
        del self._sessions[call.path["session"]]
        made = self.add(
            session.account,
            bytes(session.data),
            session.display_name,
            session.mime_type,
            generated=False,
        )
        call.entry.notes |= {
            "made": f"files/{made.id}",
            "filename": made.display_name,
            "file_bytes": len(made.data),
            "file_sha256": sha256(made.data).hexdigest(),
        }
        return json_reply({"file": made.view()}, headers={"x-goog-upload-status": "final"})

    def _require(self, call: Call) -> File:
        account = wire.account_of(call)
        found = self.find(account, call.path["id"])
        if found is None:
            status = self._world.options.missing_file_status
            wire.refuse(status, f"File files/{call.path['id']} is not found.")
        return found

    async def get(self, call: Call) -> Reply:
        """``GET /{version}/files/{id}``: refuses the long ids of results."""
        wire.account_of(call)
        wire.check(len(call.path["id"]) <= _LONGEST_ID, "Invalid file name: longer than 40.")
        return json_reply(self._require(call).view())

    async def delete(self, call: Call) -> Reply:
        """``DELETE /{version}/files/{id}``: refuses the long ids of results."""
        wire.account_of(call)
        wire.check(len(call.path["id"]) <= _LONGEST_ID, "Invalid file name: longer than 40.")
        del self.files[self._require(call).id]
        return json_reply({})

    async def list_all(self, call: Call) -> Reply:
        """``GET /{version}/files``."""
        account = wire.account_of(call)
        start, size = wire.page_of(call, 10)
        now = self._world.clock.now()
        found = [
            one
            for one in self.files.values()
            if one.account == account and now < one.expires and not one.generated
        ]
        body: dict[str, Any] = {"files": [one.view() for one in found[start : start + size]]}
        if start + size < len(found):
            body["nextPageToken"] = f"page-{start + size}"
        return json_reply(body)

    async def download(self, call: Call) -> Reply:
        """``GET /{version}/files/{id}:download?alt=media``: results only."""
        found = self._require(call)
        wire.check(call.query.get("alt") == "media", "Only alt=media.")
        wire.check(found.generated, "Only generated files can be downloaded.")
        job = next(
            (
                one
                for one in self._world.jobs.values()
                if one.extra.get("responses_file") == f"files/{found.id}"
            ),
            None,
        )
        if job is not None and job.fault("lost_result"):
            wire.refuse(404, f"File files/{found.id} is not found.")
        enabled = self._world.options.gemini_ranges
        return ranged(call, found.data, "application/octet-stream", found.etag, enabled=enabled)
