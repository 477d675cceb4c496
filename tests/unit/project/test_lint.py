"""The linters, as tests: what they refuse is refused in CI too."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LINTERS: dict[str, list[str]] = runpy.run_path(str(ROOT / "packaging/dev/lint.py"))["LINTERS"]


@pytest.mark.parametrize("name", LINTERS)
def test_linter_finds_nothing(name: str) -> None:
    done = subprocess.run(LINTERS[name], cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-1000:]}"


def test_import_borders_cover_every_package() -> None:
    """A package without a contract would be a border that nobody guards."""
    done = subprocess.run(LINTERS["import borders"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    for package in ("engine", "hwdetect", "console", "daemon", "kernels"):
        assert package in done.stdout
