"""Commands on a folder of their own, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.cli import run

Bayard = Callable[..., tuple[int, str, str]]


@pytest.fixture
def bayard(short_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Bayard:
    """Run a command on a folder of its own; (exit status, stdout, stderr)."""
    for name in ("BAYARD_STATE_DIR", "BAYARD_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def call(*argv: str) -> tuple[int, str, str]:
        status = run([*argv, "--state-dir", str(short_dir / "state")])
        told = capsys.readouterr()
        return status, told.out, told.err

    return call
