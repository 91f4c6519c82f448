"""The fuzz target, 2,000 inputs here; ``python -m benchmarks fuzz`` and ``make soak`` do more."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from llm_batch_assets.reconcile.accounting import account
from llm_batch_assets.reconcile.model import Expected, RawFile, Rules
from llm_batch_assets_tests.reconcile.fuzz import PROVIDERS, Corpus, check
from llm_batch_assets_tests.wire import rowmaker as make

CORPUS = Corpus()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_500_inputs_per_provider(provider: str) -> None:
    for seed in range(500):
        check(provider, seed, CORPUS)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_50000_inputs_per_provider(provider: str) -> None:
    for seed in range(10_000, 60_000):
        check(provider, seed, CORPUS)


ROW = make.openai("a", make.responses('{"a": 1}'))
LONG: dict[str, Callable[[int], bytes]] = {
    "brackets": lambda n: b"[" * n,
    "brackets in an answer": lambda n: make.openai("a", make.responses("[" * n)),
    "objects": lambda n: b'{"a":' * (n // 5),
    "quotes": lambda n: b'"' * n,
    "backslashes": lambda n: b"\\" * n,
    "newlines": lambda n: b"\n" * n,
    "carriage returns": lambda n: b"\r" * n,
    "white space": lambda n: b" " * n,
    "one long line": lambda n: b'{"custom_id": "a", "x": "' + b"x" * n + b'"}',
    "a long answer": lambda n: make.openai("a", make.responses("x" * n)),
    "digits": lambda n: b'{"custom_id": "a", "x": ' + b"9" * n + b"}",
    "digits in an answer": lambda n: make.openai("a", make.responses("9" * n)),
    "exponent": lambda n: make.openai("a", make.responses("1e" + "9" * n)),
    "keys": lambda n: b'{"custom_id": "a", ' + b'"k": 1, ' * (n // 8) + b'"z": 1}',
    "colons": lambda n: make.openai("a", make.responses('{"a": "' + ":" * n + '"}')),
    "escaped colons": lambda n: b'{"custom_id": "a", "x": "' + b"\\u003a" * (n // 6) + b'"}',
    "lone surrogates": lambda n: b'{"custom_id": "a", "x": "' + b"\\ud800" * (n // 6) + b'"}',
    "one row again and again": lambda n: ROW * (n // len(ROW)),
    "foreign rows": lambda n: b'{"custom_id": "foreign"}\n' * (n // 25),
    "conflicts": lambda n: b"".join(ROW[:-1] + b" " * (at % 7) + b"\n" for at in range(n // 500)),
    "heads without tails": lambda n: ROW + ROW[: ROW.index(b"annot")] * (n // 300),
    "heads without tails, a line each": lambda n: (
        ROW + (ROW[: ROW.index(b"annot")] + b"\n") * (n // 300)
    ),
    "utf-16 inside": lambda n: b"a" + "x".encode("utf-16-le") * (n // 2),
}


@pytest.mark.parametrize("kind", sorted(LONG))
def test_time_grows_with_the_length_and_no_faster(kind: str) -> None:
    """Eight times the bytes take at most about eight times as long."""
    small, large = (_seconds(LONG[kind](size)) for size in (150_000, 1_200_000))
    assert large < max(0.25, 8 * small * 3), f"{small:.4f} s, then {large:.4f} s"


def _seconds(data: bytes) -> float:
    raw = RawFile.of("f", "results", data)
    rules = Rules("openai", answer="json", schema={"type": "object"})
    best = 9.0
    for _ in range(2):
        begin = time.process_time()
        account(Expected(["a", "b"]), rules, [raw])
        best = min(best, time.process_time() - begin)
    return best
