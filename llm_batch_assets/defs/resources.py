"""What a run and a sensor tick work with, opened when they start and closed when they end."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import dagster as dg

from llm_batch_assets.settings import Home, open_home

if TYPE_CHECKING:
    from llm_batch_assets.deps import Deps
    from llm_batch_assets.providers.base import BatchProvider
    from llm_batch_assets.types import Effects

ALLOW_DEV = "LLM_BATCH_ALLOW_DEV"


class LLMBatchResource(dg.ConfigurableResource):
    """Opens ledger, artifact store and providers as the environment names them.

    The names are those of the command line (``LLM_BATCH_HOME``, ``LLM_BATCH_LEDGER_URL``,
    ``LLM_BATCH_ARTIFACTS_URL``, ``OPENAI_API_KEY``, …), so that both share one state. Nothing is
    opened or sent before an asset or a sensor asks for it.
    """

    @property
    def home(self) -> Home:
        """Where this deployment keeps its state."""
        return open_home(os.environ)

    @contextmanager
    def open(self, *, run: dg.DagsterRun | None = None, actor: str = "dagster") -> Iterator[Deps]:
        """Everything the engine needs, for one run or one sensor tick.

        Args:
            run: the run, whose root id holds the leases: a run that is restarted under the same
                root takes over what it held at once.
            actor: who is working, as the ledger's transitions name it.
        """
        from dataclasses import replace

        from llm_batch_assets.effects import effects_from_env
        from llm_batch_assets.engine import open_deps
        from llm_batch_assets.engine.opening import process_holder
        from llm_batch_assets.ledger.worker import Worker

        run_id = run.run_id if run else None
        holder = holder_of(run) if run else process_holder(actor)
        home = self.home
        with ExitStack() as stack:
            effects = effects_from_env(os.environ)
            deps = open_deps(Worker(holder, actor, run_id), home=home, effects=effects)
            stack.callback(deps.ledger.close)
            # A sensor opens this at every tick in a process that lives for weeks.
            providers = _Providers(stack, os.environ, home.deployment, effects)
            yield replace(deps, provider=providers)


def holder_of(run: dg.DagsterRun) -> str:
    """Under which name a run holds leases: a retry takes over those of its predecessor."""
    return run.root_run_id or run.run_id


class _Providers:
    """Opens each provider at its first use; the stack closes it."""

    def __init__(
        self, stack: ExitStack, env: Mapping[str, str], deployment: str, effects: Effects
    ) -> None:
        self._stack, self._env, self._deployment = stack, env, deployment
        self._effects = effects
        self._open: dict[str, BatchProvider] = {}

    def __call__(self, name: str) -> BatchProvider:
        if name not in self._open:
            from llm_batch_assets.providers.factory import open_provider

            self._open[name] = open_provider(
                name, env=self._env, deployment=self._deployment, effects=self._effects
            )
            self._stack.callback(self._open[name].close)
        return self._open[name]


def paid_work_is_off(env: Mapping[str, str]) -> bool:
    """Whether submitting and publishing stay off: a development UI against a real provider.

    ``dagster dev`` runs all sensors at once, on a laptop perhaps, with whatever key is set.
    """
    from llm_batch_assets.engine.opening import on_loopback

    dev = bool(env.get("DAGSTER_IS_DEV_CLI"))
    return dev and not on_loopback(env) and env.get(ALLOW_DEV) != "1"


llm_batch = LLMBatchResource()
"""One object for every workload of a code location: merging definitions finds no duplicate."""
