"""Dispatch to one measurement; nothing else is imported."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path


def main() -> int:
    """Run ``benchmarks.<name>.main(arguments)``."""
    here = Path(__file__).parent
    names = sorted(
        path.stem for path in here.glob("*.py") if "def main(" in path.read_text("utf-8")
    )
    names.remove("__main__")
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        print(f"usage: python -m benchmarks {{{','.join(names)}}} [options]", file=sys.stderr)
        return 2
    return int(import_module(f"benchmarks.{sys.argv[1]}").main(sys.argv[2:]) or 0)


if __name__ == "__main__":
    sys.exit(main())
