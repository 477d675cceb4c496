"""Settings and a store in a folder of their own."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from daemon.settings import Settings
from daemon.settings_load import load_settings
from daemon.store.session import Store


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command sets logging up for its process, here to a stream that pytest closes after the test."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    root.handlers, root.level = handlers, level


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder whose path is short enough for unix sockets, however deep pytest's own is."""
    with tempfile.TemporaryDirectory(prefix="bd-") as name:
        yield Path(name)


@pytest.fixture
def settings(short_dir: Path) -> Settings:
    return load_settings(None, {}, {"state_dir": short_dir})


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    opened = Store.open(settings)
    yield opened
    opened.close()
