"""Streams and events of a device that is this host: what torch.cuda has of them, with nothing running behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stream:
    def __init__(self, device: torch.device) -> None:
        self.waited = 0

    def wait_stream(self, other: Stream) -> None:
        self.waited += 1


class Event:
    def synchronize(self) -> None: ...

    def record(self, stream: Stream) -> None: ...


class HostStreams:
    """In place of torch.cuda."""

    Stream = Stream
    Event = Event

    def __init__(self) -> None:
        self.current = Stream(torch.device("cpu"))

    def current_stream(self, device: torch.device) -> Stream:
        return self.current

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        yield
