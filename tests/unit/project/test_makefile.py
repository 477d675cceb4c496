"""The targets that people and CI rely on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MAKEFILE = (ROOT / "Makefile").read_text()


def test_make_help_lists_every_documented_target() -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not on this machine")
    done = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    for target in ("help", "demo", "test", "lint", "fix", "check", "clean", "model"):
        assert re.search(rf"^\s+{target}\s+\S", done.stdout, re.MULTILINE), target


def test_make_targets_are_three_lines_at_most() -> None:
    for recipe in re.split(r"\n(?=[a-z]+:)", MAKEFILE)[1:]:
        lines = [line for line in recipe.splitlines() if line.strip() and not line.startswith("#")]
        assert len(lines) <= 3, lines[0]


def test_ci_run_is_make_test_and_nothing_after_it() -> None:
    run = ROOT / ".ci" / "run"
    assert os.access(run, os.X_OK)
    last = run.read_text().rstrip().splitlines()[-1]
    assert re.match(r"exec make .*\btest\b", last), "the closing line of pytest is the last one"
    assert last.endswith("</dev/null")
