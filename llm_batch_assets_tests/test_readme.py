"""What the README shows is what there is."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from llm_batch_assets.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_the_first_screen_shows_the_two_commands() -> None:
    first = TEXT[: TEXT.index("## ")]
    assert "make demo" in first
    assert "make test" in first


def test_its_python_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_BATCH_HOME", str(tmp_path))
    for block in _blocks("python"):
        names: dict[str, object] = {}
        exec(compile(block, "README.md", "exec"), names)
        repository = names["defs"].get_repository_def()  # type: ignore[attr-defined]
        assert "topics_per_day" in {
            key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()
        }


def test_its_commands_and_targets_exist() -> None:
    commands = "\n".join(_blocks("sh"))
    used = set(re.findall(r"bin/llm-batch-assets (\w+)", commands))
    assert used
    assert used <= set(COMMANDS)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", commands, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for path in re.findall(r"`((?:llm_batch_assets|examples)/[\w/]+\.\w+)`", TEXT):
        assert (ROOT / path).exists(), path


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")
def test_what_make_would_run_can_be_read_by_a_shell() -> None:
    """Each ``make`` line as it stands, and what it would hand to the shell."""
    asked = re.findall(r"^(make [^#\n]+?)\s*(?:#.*)?$", "\n".join(_blocks("sh")), re.MULTILINE)
    assert "make demo" in asked
    # What the make that runs these tests was told is none of theirs.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    for line in asked:
        words = shlex.split(line)
        told = subprocess.run(
            [words[0], "--dry-run", *words[1:]],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        read = subprocess.run(["sh", "-n", "-c", told.stdout], capture_output=True, text=True)
        assert read.returncode == 0, f"{line}: {told.stdout}: {read.stderr}"


def test_its_sample_of_the_last_line_is_the_real_form() -> None:
    from llm_batch_assets.demo.watch import Result

    sets = {"accepted": 598, "human_review": 0, "permanent_failure": 2, "cancelled": 0}
    shown = Result(True, True, 600, sets, 2, 6, 0)
    assert shown.line() in TEXT
    assert shown.table() in TEXT
