"""How many connections an HTTP server holds: above the bound the one that has been idle longest makes room.

So connections that do nothing cannot keep others out, whoever opened them; one that carries a request is never closed.
"""

from __future__ import annotations

import resource
from collections import OrderedDict
from typing import Protocol

RESERVED_FILES = 256  # database, workers, gRPC, admin socket, model files while they are read


class Connection(Protocol):
    def close_idle(self) -> None: ...


class Connections:
    """Owner: one HTTP server. Event loop only; every call is of constant cost.

    most: the bound asked for; what the limit of open files leaves room for is the bound where that is less
    """

    def __init__(self, most: int) -> None:
        self.most = max(1, min(most, open_files_limit() - RESERVED_FILES))
        self._all: set[Connection] = set()
        self._idle: OrderedDict[Connection, None] = OrderedDict()  # idle longest first
        self.evicted = 0  # closed to make room
        self.refused = 0  # no room was to be had: every one carried a request

    def __len__(self) -> int:
        return len(self._all)

    @property
    def idle(self) -> int:
        return len(self._idle)

    def made(self, connection: Connection) -> bool:
        """Take in a new connection, which is idle; False if there is no room, and it has to be refused."""
        if len(self._all) >= self.most:
            if not self._idle:
                self.refused += 1
                return False
            oldest, _ = self._idle.popitem(last=False)
            self._all.discard(oldest)
            self.evicted += 1
            oldest.close_idle()
        self._all.add(connection)
        self._idle[connection] = None
        return True

    def busy(self, connection: Connection) -> None:
        """A request's head is there."""
        self._idle.pop(connection, None)

    def idle_again(self, connection: Connection) -> None:
        """Its answer has ended."""
        if connection in self._all:
            self._idle[connection] = None
            self._idle.move_to_end(connection)

    def lost(self, connection: Connection) -> None:
        """Harmless when repeated."""
        self._all.discard(connection)
        self._idle.pop(connection, None)


def open_files_limit() -> int:
    """How many files this process may open, now that the soft limit is as high as it may be."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def raise_open_files_limit() -> int:
    """The soft limit up to the hard one; a service of many connections needs it. Returns what holds now."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return open_files_limit()
