"""Timing and limits of this deployment: what the environment may set, with defaults."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from llm_batch_assets.errors import InputError

_DURATION = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h|d)?$")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}


def seconds(text: str, name: str) -> float:
    """A duration such as ``30s`` or ``15m`` in seconds.

    Raises:
        InputError: the text is no duration; the setting's name is given.
    """
    match = _DURATION.match(text.strip())
    if match is None:
        raise InputError(f"{name}: {text!r} is no duration; write 500ms, 30s, 15m or 6h.")
    return float(match[1]) * _UNITS[match[2]]


def is_loopback(url: str | None) -> bool:
    """Whether an address names this machine."""
    host = (urlsplit(url).hostname or "") if url else ""
    return host in {"localhost", "::1"} or host.startswith("127.")


@dataclass(frozen=True, slots=True)
class Settings:
    """Durations in seconds.

    Attributes:
        settle_interval: how long a create may stay invisible in the provider's list; two clean
            looks this far apart prove absence (15 min; 60 s on loopback).
        post_seconds: wall-clock limit of one create (30 s plus a second per MB of body).
        poll_interval: between two looks at one batch (30 s).
        lease_ttl: of work other than a create.
        heartbeat: whether work that may outlast its lease renews it from a thread of its own;
            False where only one thread may run at a time (a simulation), so that leases expire
            in flight.
        run_silence: how long a run of an orchestrator may say nothing and hold no lease before
            its work is given to another (15 min).
    """

    settle_interval: float = 900.0
    post_seconds: float | None = None
    poll_interval: float = 30.0
    lease_ttl: float = 60.0
    heartbeat: bool = True
    run_silence: float = 900.0

    def post_limit(self, size: int) -> float:
        """The wall-clock limit of a create whose request file has ``size`` bytes."""
        if self.post_seconds is not None:
            return self.post_seconds
        return 30.0 + size / 1_000_000

    @classmethod
    def from_env(cls, env: Mapping[str, str], *, loopback: bool = False) -> Settings:
        """Read ``LLM_BATCH_{SETTLE_INTERVAL,POST_DEADLINE,POLL_INTERVAL,LEASE_TTL,RUN_SILENCE}``.

        Raises:
            InputError: one of them is no duration.
        """
        variables = {
            "settle_interval": "SETTLE_INTERVAL",
            "post_seconds": "POST_DEADLINE",
            "poll_interval": "POLL_INTERVAL",
            "lease_ttl": "LEASE_TTL",
            "run_silence": "RUN_SILENCE",
        }
        given: dict[str, Any] = {
            field: seconds(text, f"LLM_BATCH_{name}")
            for field, name in variables.items()
            if (text := env.get(f"LLM_BATCH_{name}"))
        }
        return cls(**{"settle_interval": 60.0 if loopback else 900.0, **given})


@dataclass(frozen=True, slots=True)
class Home:
    """Where this deployment keeps its state, as absolute addresses."""

    folder: Path
    ledger_url: str
    artifacts_url: str
    deployment: str


def _default_folder() -> Path:
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "workspace.yaml").exists():
            return folder / ".llm_batch"
    return here / ".llm_batch"


def open_home(env: Mapping[str, str] | None = None) -> Home:
    """Resolve ``LLM_BATCH_HOME`` and its overrides once; makes the folder, opens no database.

    The deployment is ``LLM_BATCH_DEPLOYMENT``, or a random name written once with O_EXCL, so
    that loading definitions needs no database.
    """
    env = os.environ if env is None else env
    folder = Path(env.get("LLM_BATCH_HOME") or _default_folder()).expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return Home(
        folder,
        env.get("LLM_BATCH_LEDGER_URL") or f"sqlite:///{folder / 'ledger.db'}",
        env.get("LLM_BATCH_ARTIFACTS_URL") or (folder / "artifacts").as_uri(),
        env.get("LLM_BATCH_DEPLOYMENT") or _deployment(folder / "deployment"),
    )


def _deployment(path: Path) -> str:
    if not path.exists():
        # Linked whole: a second process never reads a file that is not written yet.
        draft = path.with_name(f"{path.name}.{secrets.token_hex(6)}")
        draft.write_text(f"d-{secrets.token_hex(6)}\n", encoding="ascii")
        with suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
    name = path.read_text(encoding="ascii").strip()
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise InputError(
            f"{path.name} holds no deployment name: write 1 to 64 of A-Z a-z 0-9 . _ -"
        )
    return name
