"""upload: large host tensors to a device at the link's own speed, and what will be asked for next ahead of time."""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from engine.devices.native_uploader import native_uploader
from engine.devices.uploader import Group, Key, Sends, Sent, Stored, Uploader

STAGED_KINDS = ("cuda",)  # of devices behind a link that pinned memory goes over faster
SMALLEST_BYTES = 4 << 20  # below, and not read ahead, the plain copy is as fast
MOST_PASSED = 64  # tensors that were foreseen and not asked for, before one that is
# Of the device's memory, for tensors that nobody has asked for yet. A third of a second at a link's own speed: a
# process's first load takes a good part of that to load modules of kernels, before and between what it asks for.
AHEAD_BYTES = 16 << 30
AHEAD_SHARE = 1 / 8  # of what is free there, if that is less
STARTED_BYTES = 128 << 20  # at once; the first of many small tensors do not wait for the last ones' places


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


def prepare(device: torch.device) -> None:
    """Make what sends tensors to a device while something else is done before they are there; reading_ahead ends it."""
    if device.type in STAGED_KINDS:
        _uploader(device)


def upload_group(keys: Sequence[Key], device: torch.device) -> Tensor | None:
    """What lies there, side by side on the device, [bytes] uint8, if it was read ahead so. Blocks: as upload."""
    ahead = _AHEAD.get(device)
    return None if ahead is None else ahead.take_group(keys)


@contextmanager
def reading_ahead(device: torch.device) -> Iterator[Callable[[Iterable[Sequence[Stored]]], None]]:
    """Gives what is told of the tensors that are coming, as groups that are to lie side by side on the device.

    Meanwhile upload finds tensors on their way that lie where one of those lies; in about that order, each asked for as
    those before are taken.
    """
    if device.type not in STAGED_KINDS or device in _AHEAD:
        yield lambda coming: None
        return
    prepare(device)
    begun: list[ReadAhead] = []

    def begin(coming: Iterable[Sequence[Stored]]) -> None:
        limit_bytes = min(AHEAD_BYTES, int(AHEAD_SHARE * _free(device)))
        _AHEAD[device] = ahead = ReadAhead(coming, _uploader(device), limit_bytes)
        begun.append(ahead)
        ahead.fill()

    collects = gc.isenabled()
    gc.disable()  # it would walk all modules of the process, a tenth of a second each time, for nothing that is garbage
    try:
        yield begin
    finally:
        if collects:
            gc.enable()
        _AHEAD.pop(device, None)
        for ahead in begun:
            ahead.close()
        _dismiss(device)


class ReadAhead:
    """Owner: one load."""

    def __init__(self, coming: Iterable[Sequence[Stored]], uploader: Sends, limit_bytes: int = AHEAD_BYTES) -> None:
        self._coming = iter(coming)
        self._uploader = uploader
        self._limit_bytes = limit_bytes
        self._next: deque[Sequence[Stored]] = deque()
        self._held_bytes = 0
        self._sendings: dict[Key, tuple[Sent, int]] = {}  # a tensor's group, and how far from its start

    def take(self, tensor: Tensor) -> Tensor | None:
        """The same on the device, once. None: it was not read ahead. Blocks: until the host's memory has been read."""
        found = self._sendings.pop(_key(tensor), None)
        if found is None:
            self._catch_up(tensor)
            return None
        sending, start = found
        self._held_bytes -= tensor.nbytes
        self.fill()
        self._uploader.finish(sending)
        return sending.target[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    def take_group(self, keys: Sequence[Key]) -> Tensor | None:
        """As take, of all that lie where a group does, in its order: their bytes side by side. None: not so."""
        end = 0
        whole = self._sendings.get(keys[0])
        for key in keys:
            found = self._sendings.get(key)
            if whole is None or found is None or found[0] is not whole[0] or found[1] != end:
                return None
            end += key[1]
        if whole is None or whole[0].target.nbytes != end:
            return None
        for key in keys:
            del self._sendings[key]
        self._held_bytes -= end
        self.fill()
        self._uploader.finish(whole[0])
        return whole[0].target

    def fill(self) -> None:
        """Queue what is next, as far as the limit lets it; a good part of it at a time."""
        room = self._limit_bytes - self._held_bytes
        if room < self._limit_bytes // 8:
            return
        some: list[Group] = []
        count = 0
        while self._held_bytes + count < self._limit_bytes and (sources := self._peek()):
            size = sum(source.num_bytes for source in sources)
            if self._held_bytes + count + size > self._limit_bytes and (some or self._held_bytes):
                break  # one that is larger than the limit goes alone
            target = self._room(size)
            if target is None:
                break
            self._next.popleft()
            some.append((sources, target))
            count += size
            if count >= STARTED_BYTES:
                self._start(some, count)
                some, count = [], 0
        if some:
            self._start(some, count)

    def _start(self, groups: list[Group], num_bytes: int) -> None:
        self._held_bytes += num_bytes
        for (sources, _), sending in zip(groups, self._uploader.start(groups), strict=True):
            start = 0
            for source in sources:
                self._sendings[source.key] = sending, start
                start += source.num_bytes

    def close(self) -> None:
        """Let go of what nobody asked for. Blocks: until its source has been read."""
        for sending in {id(sending): sending for sending, _ in self._sendings.values()}.values():
            self._uploader.drop(sending)
        self._sendings.clear()
        self._held_bytes = 0

    def _catch_up(self, missed: Tensor) -> None:
        """What is asked for is not on its way: if all room is taken, by what will not be asked for, go on behind it."""
        if missed.nbytes < SMALLEST_BYTES or self._held_bytes <= self._limit_bytes * 7 // 8:
            return
        key = _key(missed)
        while len(self._next) < MOST_PASSED and (group := next(self._coming, None)) is not None:
            self._next.append(group)
        place = next((n for n, group in enumerate(self._next) if any(one.key == key for one in group)), None)
        if place is None:
            return
        for _ in range(place + 1):
            self._next.popleft()
        self.close()
        self.fill()

    def _peek(self) -> Sequence[Stored]:
        """The next group; nothing: there is none."""
        while True:
            if not self._next:
                group = next(self._coming, None)
                if group is None:
                    return ()
                self._next.append(group)
            left = [one for one in self._next[0] if one.num_bytes and one.key not in self._sendings]
            if left:
                self._next[0] = left
                return left
            self._next.popleft()

    def _room(self, count: int) -> Tensor | None:
        try:
            return torch.empty(count, dtype=torch.uint8, device=self._uploader.device)
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
    """A loaded model needs its threads and pinned memory no more, nor has to wait while they end."""
    uploader = _UPLOADERS.pop(device, None)
    if uploader is not None:
        threading.Thread(target=uploader.close, name="upload-end").start()


def _key(tensor: Tensor) -> Key:
    return tensor.data_ptr(), tensor.nbytes


def _bytes_of(tensor: Tensor) -> Tensor:
    if tensor.dtype is torch.uint8 and tensor.dim() == 1:
        return tensor
    return tensor.view(-1).view(torch.uint8)
