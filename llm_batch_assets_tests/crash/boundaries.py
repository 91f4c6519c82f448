"""The boundaries of one watched run, and whether each of its effects lies between two of them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from llm_batch_assets_tests.crash.scene import Scene

ROUTES = {
    "upload": "provider.upload",
    "upload_data": "provider.upload",
    "create": "provider.create",
    "list": "provider.list",
    "poll": "provider.get",
    "cancel": "provider.cancel",
    "delete": "provider.delete",
    "file_delete": "provider.delete",
    "file_get": "provider.download",
    "download": "provider.download",
}
"""The simulator's name of a call -> the boundary that must lie around it."""


@dataclass
class Watched:
    """What one run did, by its own boundaries and by independent records."""

    passings: list[tuple[float, str, str]]
    calls: list[dict[str, Any]]
    commits: list[float]
    links: list[tuple[float, str]]

    def points(self) -> list[str]:
        """Every place to die, as ``LLM_BATCH_CRASH_AT`` takes it."""
        counts: Counter[tuple[str, str]] = Counter()
        found = []
        for _, name, when in self.passings:
            counts[name, when] += 1
            found.append(f"{name}:{when}:{counts[name, when]}")
        return found

    def spans(self, *names: str) -> list[tuple[float, float]]:
        """From "before" to its "after", of the boundaries whose names begin so.

        An ``after`` closes the latest open ``before`` of its name.
        """
        found: list[tuple[float, float]] = []
        started: dict[str, float] = {}
        for at, name, when in self.passings:
            if not name.startswith(names):
                continue
            if when == "before":
                started[name] = at
            elif name in started:
                found.append((started.pop(name), at))
        return found

    def uncovered(self) -> list[str]:
        """Effects without a boundary on each side, each in words."""
        missing = []
        for call in self.calls:
            spans = self.spans(ROUTES[call["route"]])
            if not _inside(call["at"], spans):
                missing.append(f"call {call['route']} {call['path']}")
        spans = self.spans("commit.")
        missing += [f"commit at {at}" for at in self.commits if not _inside(at, spans)]
        spans = self.spans("store.")
        missing += [f"object {to}" for at, to in self.links if not _inside(at, spans)]
        return missing


def _inside(at: float, spans: list[tuple[float, float]]) -> bool:
    return any(start <= at <= end for start, end in spans)


def watch(scene: Scene) -> Watched:
    """Run a scene's command once, in a process of its own, with every record switched on."""
    log, seen = scene.folder / "boundaries.tsv", scene.folder / "seen.json"
    others = len(scene.account.more_calls)
    code = scene.run({"LLM_BATCH_EFFECTS_LOG": str(log)}, seen)
    assert code == 0 and seen.exists(), scene.said()
    records = json.loads(seen.read_text(encoding="utf-8"))
    assert records["code"] == 0, scene.said()
    lines = [line.split("\t") for line in log.read_text(encoding="ascii").splitlines()]
    artifacts = str(scene.folder / "home" / "artifacts")
    return Watched(
        passings=[(float(at), name, when) for at, name, when in lines],
        calls=[
            *(entry for entry in scene.sim.log() if entry["route"] in ROUTES),
            *scene.account.more_calls[others:],
        ],
        commits=records["commits"],
        links=[(at, to) for at, to in records["links"] if to.startswith(artifacts)],
    )
