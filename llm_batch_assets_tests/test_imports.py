"""What importing costs and reaches: measured in fresh processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = (
    "dagster",
    "openai",
    "anthropic",
    "google.genai",
    "boto3",
    "botocore",
    "pandas",
    "pyarrow",
    "sqlalchemy",
    "alembic",
)
_ENV = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}


def _modules(code: str) -> set[str]:
    """Which of the heavy modules a fresh process has after running ``code``."""
    probe = f"import sys\n{code}\nprint('LOADED', *[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", probe], env=_ENV, capture_output=True, text=True, check=True
    )
    return set(done.stdout.rsplit("LOADED", 1)[1].split())


_HELP = "from click.testing import CliRunner\nfrom llm_batch_assets.cli.main import group\n"


@pytest.mark.parametrize(
    "code",
    [
        "import llm_batch_assets",
        f"{_HELP}assert CliRunner().invoke(group, ['--help']).exit_code == 0",
        f"{_HELP}assert CliRunner().invoke(group, ['demo', '--help']).exit_code == 0",
        f"{_HELP}assert CliRunner().invoke(group, ['run', '--help']).exit_code == 0",
        f"{_HELP}assert CliRunner().invoke(group, ['simulate', '--help']).exit_code == 0",
    ],
    ids=["import", "help", "demo-help", "run-help", "simulate-help"],
)
def test_starting_loads_nothing_heavy(code: str) -> None:
    assert _modules(code) == set()


def test_help_takes_under_four_tenths_of_a_second_of_a_processor() -> None:
    """The machine may be busy, the program may not."""
    command = [sys.executable, "-m", "llm_batch_assets.cli", "--help"]
    subprocess.run(command, env=_ENV, capture_output=True, check=True)  # writes .pyc files
    times = []
    for _ in range(8):
        before = os.times()
        subprocess.run(command, env=_ENV, capture_output=True, check=True)
        after = os.times()
        times.append(sum(after[2:4]) - sum(before[2:4]))  # of children that have ended
        if times[-1] < 0.4:
            break
    assert min(times) < 0.4, times


def test_the_code_location_loads_no_sdk_and_no_table_library(tmp_path) -> None:
    """Every run imports it; each of these would cost every run a second or more."""
    env = {"LLM_BATCH_HOME": str(tmp_path)}
    code = (
        f"import os; os.environ.update({env!r})\n"
        "import llm_batch_assets.definitions as d; d.defs.get_repository_def()"
    )
    assert _modules(code) == {"dagster"}
    assert not (tmp_path / "ledger.db").exists(), "loading definitions needs no database"


def test_public_names_resolve() -> None:
    import llm_batch_assets

    for name in llm_batch_assets.__all__:
        assert getattr(llm_batch_assets, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = llm_batch_assets.no_such_name


def test_rooms_import_only_what_lies_below_them() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()",
         "--no-cache"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
