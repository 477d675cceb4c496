"""upload: large host tensors to a device at the link's own speed, and what will be asked for next ahead of time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from engine.devices.native_uploader import native_uploader
from engine.devices.uploader import Sends, Sent, Uploader

STAGED_KINDS = ("cuda",)  # of devices behind a link that pinned memory goes over faster
SMALLEST_BYTES = 4 << 20  # below, and not read ahead, the plain copy is as fast
MOST_PASSED = 64  # tensors that were foreseen and not asked for, before one that is
AHEAD_BYTES = 1 << 30  # of the device's memory, for tensors that nobody has asked for yet
AHEAD_SHARE = 1 / 8  # of what is free there, if that is less


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on its device; itself if it is there already. Blocks: until the host's memory has been read."""
    staged = device.type in STAGED_KINDS and tensor.device.type == "cpu" and not tensor.is_pinned()
    if not staged or not tensor.is_contiguous():
        return tensor.to(device)
    ahead = _AHEAD.get(device)
    if ahead is not None and (found := ahead.take(tensor)) is not None:
        return found
    if tensor.nbytes < SMALLEST_BYTES:
        return tensor.to(device)
    out = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    _uploader(device).copy(_bytes_of(tensor), _bytes_of(out))
    return out


@contextmanager
def reading_ahead(coming: Iterable[Tensor], device: torch.device) -> Iterator[None]:
    """Meanwhile upload finds tensors on their way that lie where one of those coming lies; in about that order.

    coming: asked for one after the other, as those before are taken
    """
    if device.type not in STAGED_KINDS or device in _AHEAD:
        yield
        return
    _AHEAD[device] = ahead = ReadAhead(coming, _uploader(device), min(AHEAD_BYTES, int(AHEAD_SHARE * _free(device))))
    try:
        ahead.fill()
        yield
    finally:
        del _AHEAD[device]
        ahead.close()
        _dismiss(device)


class ReadAhead:
    """Owner: one load."""

    def __init__(self, coming: Iterable[Tensor], uploader: Sends, limit_bytes: int = AHEAD_BYTES) -> None:
        self._coming = iter(coming)
        self._uploader = uploader
        self._limit_bytes = limit_bytes
        self._next: deque[Tensor] = deque()
        self._held_bytes = 0
        self._sendings: dict[tuple[int, int], Sent] = {}  # by where a tensor lies

    def take(self, tensor: Tensor) -> Tensor | None:
        """The same on the device, once. None: it was not read ahead. Blocks: until the host's memory has been read."""
        sending = self._sendings.pop(_key(tensor), None)
        if sending is None:
            self._catch_up(tensor)
            return None
        self._held_bytes -= tensor.nbytes
        self.fill()
        self._uploader.finish(sending)
        return sending.target.view(tensor.dtype).view(tensor.shape)

    def fill(self) -> None:
        """Queue what is next, as far as the limit lets it; a good part of it at a time."""
        room = self._limit_bytes - self._held_bytes
        if room < self._limit_bytes // 8:
            return
        some: list[tuple[Tensor, Tensor]] = []
        count = 0
        while count < room and (source := self._peek()) is not None:
            if count + source.nbytes > room and (some or self._held_bytes):
                break  # one that is larger than the limit goes alone
            target = self._room(source)
            if target is None:
                break
            self._next.popleft()
            some.append((source, target))
            count += source.nbytes
        self._held_bytes += count
        for sending in self._uploader.start(some) if some else ():
            self._sendings[_key(sending.source)] = sending

    def close(self) -> None:
        """Let go of what nobody asked for. Blocks: until its source has been read."""
        for sending in self._sendings.values():
            self._uploader.drop(sending)
        self._sendings.clear()
        self._held_bytes = 0

    def _catch_up(self, missed: Tensor) -> None:
        """What is asked for is not on its way: if all room is taken, by what will not be asked for, go on behind it."""
        if missed.nbytes < SMALLEST_BYTES or self._held_bytes <= self._limit_bytes * 7 // 8:
            return
        key = _key(missed)
        while len(self._next) < MOST_PASSED and (tensor := next(self._coming, None)) is not None:
            self._next.append(_bytes_of(tensor))
        place = next((place for place, source in enumerate(self._next) if _key(source) == key), None)
        if place is None:
            return
        for _ in range(place + 1):
            self._next.popleft()
        self.close()
        self.fill()

    def _peek(self) -> Tensor | None:
        while True:
            if not self._next:
                tensor = next(self._coming, None)
                if tensor is None:
                    return None
                self._next.append(_bytes_of(tensor))
            if self._next[0].nbytes and _key(self._next[0]) not in self._sendings:
                return self._next[0]
            self._next.popleft()

    def _room(self, source: Tensor) -> Tensor | None:
        try:
            return torch.empty(source.shape, dtype=torch.uint8, device=self._uploader.device)
        except torch.OutOfMemoryError:  # who asks for the tensor itself will be told, if there is no room then either
            self._coming, self._next = iter(()), deque()
            return None


_AHEAD: dict[torch.device, ReadAhead] = {}


def _free(device: torch.device) -> int:
    api: Any = getattr(torch, device.type)
    return int(api.mem_get_info(device)[0]) if hasattr(api, "mem_get_info") else AHEAD_BYTES


_UPLOADERS: dict[torch.device, Sends] = {}


def _uploader(device: torch.device) -> Sends:
    if device not in _UPLOADERS:
        _UPLOADERS[device] = native_uploader(device) or Uploader(device)
    return _UPLOADERS[device]


def _dismiss(device: torch.device) -> None:
    """A loaded model needs its threads and pinned memory no more."""
    uploader = _UPLOADERS.pop(device, None)
    if uploader is not None:
        uploader.close()


def _key(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.nbytes


def _bytes_of(tensor: Tensor) -> Tensor:
    if tensor.dtype is torch.uint8 and tensor.dim() == 1:
        return tensor
    return tensor.view(-1).view(torch.uint8)
