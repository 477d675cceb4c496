"""What other makers' client packages leave open, closed where it was left: fixtures and a mark for their tests."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def clients_of_others_close_late() -> Iterator[None]:
    """Some client packages leave sockets to the collector: here, not in the middle of somebody else's test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module", autouse=True)
def nothing_of_other_clients_is_left() -> Iterator[None]:
    """Close what client packages keep open in caches of theirs: the collector would warn in somebody else's test."""
    kinds = (socket.socket, asyncio.AbstractEventLoop)
    before = {id(thing) for thing in gc.get_objects() if issubclass(type(thing), kinds)}
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
        for thing in gc.get_objects():
            if not issubclass(type(thing), kinds) or id(thing) in before:
                continue
            if isinstance(thing, socket.socket) or not (thing.is_running() or thing.is_closed()):
                thing.close()


def bear_with_clients(items: list[pytest.Item], folder: Path) -> None:
    """In the tests of this folder, let no client's leftovers count as a fault."""
    for item in items:
        if folder in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
