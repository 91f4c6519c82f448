"""Open everything an engine works with, from the environment, for the command line and Dagster."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Mapping
from functools import partial

from llm_batch_assets.artifacts import open_store
from llm_batch_assets.deps import Deps, Progress, silent
from llm_batch_assets.ledger import Ledger
from llm_batch_assets.ledger.leases import holders, release_holder
from llm_batch_assets.ledger.worker import Worker
from llm_batch_assets.providers.base import BatchProvider
from llm_batch_assets.providers.factory import open_provider
from llm_batch_assets.settings import Home, Settings, is_loopback, open_home
from llm_batch_assets.types import NO_EFFECTS, Effects

BASE_URLS = {
    "openai": "OPENAI_BASE_URL",
    "anthropic": "ANTHROPIC_BASE_URL",
    "gemini": "GOOGLE_GEMINI_BASE_URL",
    "bedrock": "AWS_ENDPOINT_URL_BEDROCK",
}


def on_loopback(env: Mapping[str, str]) -> bool:
    """Whether every provider address that is set names this machine, and one is set."""
    given = [env[name] for name in BASE_URLS.values() if env.get(name)]
    return bool(given) and all(is_loopback(url) for url in given)


def loopback_providers(env: Mapping[str, str]) -> frozenset[str]:
    """The providers whose own address is set and names this machine."""
    return frozenset(name for name, variable in BASE_URLS.items() if is_loopback(env.get(variable)))


def process_holder(actor: str) -> str:
    """A holder's name that tells whether its process still lives on this machine."""
    return f"{actor}:{_machine()}:{os.getpid()}"


def open_deps(
    worker: Worker,
    *,
    env: Mapping[str, str] | None = None,
    home: Home | None = None,
    settings: Settings | None = None,
    effects: Effects = NO_EFFECTS,
    progress: Progress = silent,
) -> Deps:
    """Open ledger (made or migrated where needed) and store; providers open at first use."""
    env = os.environ if env is None else env
    home = open_home(env) if home is None else home
    ledger = Ledger(home.ledger_url, deployment=home.deployment, effects=effects)
    ledger.upgrade()
    store = open_store(home.artifacts_url, effects=effects)
    ledger.bind_store(store.store_id)
    _release_dead(ledger)
    if settings is None:
        settings = Settings.from_env(env, loopback=on_loopback(env))
    opener = partial(open_provider, env=env, deployment=home.deployment, effects=effects)
    return Deps(
        ledger,
        store,
        _cached(opener),
        settings,
        worker,
        effects,
        progress,
        loopback=loopback_providers(env),
    )


def _cached(opener: Callable[[str], BatchProvider]) -> Callable[[str], BatchProvider]:
    opened: dict[str, BatchProvider] = {}

    def provider(name: str) -> BatchProvider:
        if name not in opened:
            opened[name] = opener(name)
        return opened[name]

    return provider


def _machine() -> str:
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _release_dead(ledger: Ledger) -> None:
    """Give back what processes of this machine held that are gone: their leases end at once.

    Safe because a lease alone never permits a second create: SUBMITTING waits for its deadline.
    """
    machine = _machine()
    for holder in holders(ledger):
        _, _, rest = holder.partition(":")
        host, _, pid = rest.partition(":")
        if host == machine and pid.isdigit() and not _alive(int(pid)):
            release_holder(ledger, holder)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
