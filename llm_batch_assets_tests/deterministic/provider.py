"""A client of the provider in virtual time, behind the Protocol of the real ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llm_batch_assets.errors import DownloadError, Effect, ProviderError, ProviderFault
from llm_batch_assets.providers.base import Body, Uploaded
from llm_batch_assets.providers.common import boundary
from llm_batch_assets.types import BatchView, CreateRequest, ResultRef
from llm_batch_assets.wire.anthropic import status as anthropic_status
from llm_batch_assets.wire.openai import status as openai_status
from llm_batch_assets_tests.deterministic.server import Batch, File, Server, question
from llm_batch_assets_tests.deterministic.world import SECOND


def _cut(data: bytes, at: float) -> bytes:
    """A part of a file; most end with a whole line, which no reader can tell."""
    size = int(len(data) * at)
    return data[: data.rfind(b"\n", 0, size) + 1] if size % 4 else data[:size]


class SimProvider:
    """One account; every call takes virtual time and may fail in the ways that calls fail."""

    def __init__(self, server: Server) -> None:
        self.server, self.world = server, server.world
        self.name = "openai" if server.labelled else "anthropic"
        self.has_upload = server.labelled
        self.settles_by_label = server.labelled
        self.label_proves = server.labelled

    def account(self) -> str:
        return "account-of-the-simulation"

    def upload(self, path: Path, *, name: str, timeout: float) -> Uploaded:
        data = path.read_bytes()
        with self._call("upload"):
            ref = f"file_{len(self.server.files):03d}"
            self.server.files[ref] = File(data)
            self.server.note("uploaded", ref)
        return Uploaded(ref, len(data))

    def create(self, request: CreateRequest, path: Path, *, timeout: float) -> BatchView:
        server, world = self.server, self.world
        patience = int(timeout * SECOND)
        deadline = world.now + patience
        data = path.read_bytes()
        with boundary(world, "provider.create"):
            fate = server.draw(server.weather.create)
            server.note("create", f"{request.shard_key} {fate}")
            if fate in ("refused_now", "refused", "account"):
                world.sleep(world.seconds(0.05, 0.5))
                raise self._refusal(fate)
            made: list[Batch] = []
            gone: list[bool] = []

            def arrive() -> None:
                file = server.files.get(request.input_ref or "")
                if server.labelled and (file is None or file.deleted):
                    server.note("no file", request.shard_key)
                    gone.append(True)
                    return
                labels = {
                    "deployment": request.deployment,
                    "submission_key": request.submission_key,
                }
                content = data if file is None else file.data
                made.append(
                    server.accept(
                        lines_of(content),
                        labels if server.labelled else {},
                        request.input_ref,
                        deadline=deadline,
                    )
                )

            there = world.seconds(0.02, timeout / 3)
            if fate in ("never", "500_before"):
                pass
            elif fate == "late":
                world.after(timeout + world.seconds(0.01, server.weather.late), arrive)
            else:
                world.after(there, arrive)
            if fate in ("never", "late", "slow"):
                world.sleep(timeout)
                raise self._error("create", "no reply in time")
            world.sleep(there + world.seconds(0.02, timeout / 3))
            if gone and fate == "ok":
                raise self._refusal("refused")
            if fate in ("500_before", "500_after"):
                raise self._error("create", "a bad gateway", status=502)
            if fate == "lost":
                raise self._error("create", "the connection was dropped")
            made[0].answered = True
            return self._view(made[0])

    def list_batches(self) -> Iterator[BatchView]:
        after: str | None = None
        more = True
        while more:
            with self._call("list"):
                found, more = self.server.page(after)
                views = [self._view(batch) for batch in found]
            yield from views
            after = found[-1].id if found else None

    def get(self, batch_id: str) -> BatchView:
        with self._call("get"):
            return self._view(self._find("get", batch_id))

    @contextmanager
    def open_result(
        self, ref: ResultRef, *, offset: int = 0, etag: str | None = None
    ) -> Iterator[Body]:
        world, weather = self.world, self.server.weather
        with self._call("download"):
            found = self.server.result(ref.ref)
            if found is None:
                self.server.note("no result", ref.ref)
                raise self._error("download", "gone", status=410, fault="not_found")
            self.server.note("opened", ref.ref)
            data = found[1]
            calm = world.current is None or world.current.calm
            short = not calm and world.rng.random() < weather.short
            kept = _cut(data, world.rng.random()) if short else data
            breaks = short and world.rng.random() < 0.5

        def chunks() -> Iterator[bytes]:
            for start in range(0, len(kept), 700):
                yield kept[start : start + 700]
            if breaks:
                raise DownloadError("The connection was dropped.")

        labelled = self.server.labelled
        yield Body(
            status=200,
            chunks=chunks(),
            announced_bytes=len(data),
            expected_bytes=len(data) if labelled else None,
            content_type="application/octet-stream",
        )

    def cancel(self, batch_id: str) -> BatchView | None:
        with self._call("cancel"):
            batch = self._find("cancel", batch_id)
            self.server.note("cancelled", batch_id)
            if self.world.now >= batch.end:
                return None
            if batch.cancel_at is None:
                batch.cancel_at = self.world.now
            return self._view(batch)

    def delete_input(self, ref: str) -> None:
        with self._call("delete"):
            self.server.note("deleted", ref)
            if ref in self.server.files:
                self.server.files[ref].deleted = True

    def delete_remote(self, batch_id: str, refs: tuple[str, ...]) -> None:
        with self._call("delete"):
            self.server.note("deleted", batch_id)
            batch = self._find("delete", batch_id)
            batch.deleted = True

    def close(self) -> None:
        """Nothing is open."""

    # --- replies ----------------------------------------------------------------------------------

    @contextmanager
    def _call(self, operation: str) -> Iterator[None]:
        """One call that takes time, and that may fail before or after its effect."""
        world, chance = self.world, self.server.weather.fault
        with boundary(world, f"provider.{operation}"):
            calm = world.current is None or world.current.calm
            draw = world.rng.random()
            if not calm and draw < chance / 2:
                world.sleep(0.2)
                raise self._error(operation, "no reply", status=503 if draw < chance / 4 else None)
            yield
            if world.rng.random() < 0.3:
                world.sleep(world.seconds(0.01, 0.3))
            if not calm and chance / 2 <= draw < chance:
                raise self._error(operation, "the reply was lost")

    def _find(self, operation: str, batch_id: str) -> Batch:
        batch = self.server.find(batch_id)
        if batch is None:
            raise self._error(operation, "no such batch", status=404, fault="not_found")
        return batch

    def _view(self, batch: Batch) -> BatchView:
        read = openai_status.read_batch if self.server.labelled else anthropic_status.read_batch
        return read(self.server.raw(batch))

    def _refusal(self, fate: str) -> ProviderError:
        status = {"refused_now": 429, "refused": 400, "account": 401}[fate]
        return self._error("create", fate, status=status, fault=fate, effect="none")

    def _error(
        self,
        operation: str,
        message: str,
        *,
        status: int | None = None,
        fault: Any = "transport",
        effect: Effect = "unknown",
    ) -> ProviderError:
        kind: ProviderFault = fault
        return ProviderError(
            message,
            provider=self.name,
            operation=operation,
            fault=kind,
            effect=effect,
            http_status=status,
            code=message[:40],
        )


def lines_of(data: bytes) -> list[tuple[str, str]]:
    """(custom_id, question) of each request line."""
    found = []
    for line in data.splitlines():
        row = json.loads(line)
        found.append((row["custom_id"], question(row.get("body") or row["params"])))
    return found
