"""A store of its own for every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.settings import Settings
from daemon.store.session import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store.open(Settings(state_dir=tmp_path, run_dir=tmp_path, admin_socket=tmp_path / "a.sock"))
    yield made
    made.close()
