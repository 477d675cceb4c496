"""The library's threads that send tensors, with a driver that is this host: bytes, order, and what fails is told."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
import torch

from engine.devices.native_uploader import NativeUploader, native_uploader
from engine.devices.upload import ReadAhead
from engine.devices.uploader import BUFFER_BYTES, Stored
from engine.errors import WorkerError
from engine.kernels.cpu import abi, library
from engine.models.checkpoint import MappedCheckpoint
from engine.spec import read_spec
from tests.fakes.family_models import saved_model
from tests.fakes.host_streams import HostStreams

HOST = torch.device("cpu")
pytestmark = pytest.mark.skipif(library.absent_reason() is not None, reason="the library for the host is not built")

INT, VOID, SIZE = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
KINDS = {
    "use": ctypes.CFUNCTYPE(INT, VOID),
    "pin": ctypes.CFUNCTYPE(INT, VOID, SIZE, ctypes.c_uint),
    "unpin": ctypes.CFUNCTYPE(INT, VOID),
    "make_event": ctypes.CFUNCTYPE(INT, ctypes.POINTER(VOID), ctypes.c_uint),
    "copy": ctypes.CFUNCTYPE(INT, ctypes.c_uint64, VOID, SIZE, VOID),
    "record": ctypes.CFUNCTYPE(INT, VOID, VOID),
    "wait": ctypes.CFUNCTYPE(INT, VOID),
}


class HostDriver:
    """What the library asks of a driver, done at once."""

    def __init__(self) -> None:
        self.fails_on: set[int] = set()  # sizes of copies
        self.held: dict[int, int] = {}
        self.used: set[int] = set()
        self.made = 0
        self._functions = {name: kind(getattr(self, name)) for name, kind in KINDS.items()}
        addresses = {name: ctypes.cast(function, VOID).value for name, function in self._functions.items()}
        self.link = abi.Link(**addresses, context=7, stream=9)

    def use(self, context: int) -> int:
        self.used.add(threading.get_ident())
        return 0 if context == 7 else 1

    def pin(self, memory: int, count: int, flags: int) -> int:
        self.held[memory] = count
        return 0 if memory % (2 << 20) == 0 else 1

    def unpin(self, memory: int) -> int:
        del self.held[memory]
        return 0

    def make_event(self, event, flags: int) -> int:
        self.made += 1
        event[0] = self.made
        return 0

    def copy(self, target: int, source: int, count: int, stream: int) -> int:
        if count in self.fails_on or stream != 9:
            return 700
        ctypes.memmove(target, source, count)
        return 0

    def record(self, event: int, stream: int) -> int:
        return 0

    def wait(self, event: int) -> int:
        return 0


@pytest.fixture
def driver() -> HostDriver:
    return HostDriver()


@pytest.fixture
def sender(driver: HostDriver) -> Iterator[NativeUploader]:
    streams = HostStreams()
    made = NativeUploader(HOST, driver.link, streams.Stream(HOST), streams, threads=3)
    yield made
    if made._sender is not None:
        made.close()


def numbers(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("count", [1, 63, 64, 65, 5 << 20, 2 * BUFFER_BYTES + 12_346])
def test_one_tensor_arrives_as_it_was(sender: NativeUploader, count: int) -> None:
    whole = numbers(count + 3)
    for start in (0, 3):  # a file's tensors begin anywhere
        source = whole[start : start + count]
        target = torch.zeros(count, dtype=torch.uint8)
        sender.copy(source, target)
        assert torch.equal(source, target)


def test_many_tensors_arrive_in_any_order_of_asking_and_memory_is_given_back(
    sender: NativeUploader, driver: HostDriver
) -> None:
    sources = [numbers(1 + 37_001 * i, seed=i) for i in range(60)] + [numbers(3 * BUFFER_BYTES + 1), numbers(0)]
    targets = [torch.zeros_like(source) for source in sources]
    sendings = sender.start((([Stored.of(s)], t) for s, t in zip(sources, targets, strict=True)), piece=1 << 20)
    for sending in reversed(sendings):
        sender.finish(sending)
    assert all(torch.equal(source, target) for source, target in zip(sources, targets, strict=True))
    assert sender._seen == len(sources)
    assert 2 <= len(driver.held) <= 6
    sender.close()
    assert not driver.held
    assert len(driver.used) == 3


def test_what_the_driver_refuses_is_told_to_who_waits_and_to_nobody_else(
    sender: NativeUploader, driver: HostDriver
) -> None:
    driver.fails_on = {1000}
    good = numbers(999)
    bad, unasked, fine = sender.start(
        [([Stored.of(s)], torch.zeros_like(s)) for s in (numbers(1000), numbers(1000, seed=1), good)]
    )
    with pytest.raises(WorkerError, match="700"):
        sender.finish(bad)
    sender.drop(unasked)
    sender.finish(fine)
    assert torch.equal(fine.target, good)


def test_tensors_are_read_ahead_through_it(sender: NativeUploader) -> None:
    coming = [torch.randint(0, 99, (size,), dtype=torch.int16) for size in (5, 3 << 20, 70, 9 << 20, 1)]
    ahead = ReadAhead([[Stored.of(tensor)] for tensor in coming], sender, limit_bytes=24 << 20)
    ahead.fill()
    for tensor in coming[:-1]:
        found = ahead.take(tensor)
        assert found is not None
        assert torch.equal(found, tensor)
    ahead.close()


@pytest.mark.parametrize("piece", [1000, 4096, BUFFER_BYTES])
def test_those_of_a_group_arrive_side_by_side_from_memory_and_from_files(
    sender: NativeUploader, tmp_path: Path, piece: int
) -> None:
    parts = [numbers(size, seed=size) for size in (1, 70_001, 4096, 0, 333, 200_000)]
    path = tmp_path / "weights"
    path.write_bytes(b"".join(part.numpy().tobytes() for part in parts))
    offsets = [sum(len(part) for part in parts[:i]) for i in range(len(parts))]
    with path.open("rb") as file:
        unread = torch.zeros(300_000, dtype=torch.uint8)  # what lies in the file is taken from there
        stored = [
            Stored(unread, offset, len(part), unread.data_ptr() + offset, file.fileno()) if i % 2 else Stored.of(part)
            for i, (part, offset) in enumerate(zip(parts, offsets, strict=True))
        ]
        target = torch.zeros(offsets[-1] + len(parts[-1]), dtype=torch.uint8)
        (sending,) = sender.start([(stored, target)], piece)
        sender.finish(sending)
    assert torch.equal(target, torch.cat(parts))


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_matrices_of_a_checkpoint_arrive_from_its_files(sender: NativeUploader, tmp_path: Path, name: str) -> None:
    saved_model(name, tmp_path)
    checkpoint = MappedCheckpoint(read_spec(tmp_path), lambda done, total: None)
    ahead = ReadAhead(checkpoint.coming(), sender, limit_bytes=1 << 20)
    ahead.fill()
    found = 0
    for role, layer in checkpoint.table:
        matrix = checkpoint.matrix(role, layer)
        assert isinstance(matrix, torch.Tensor)
        arrived = ahead.take(matrix)
        assert arrived is not None or matrix.dim() == 1, (role, layer)
        if arrived is not None:
            assert torch.equal(arrived, matrix), (role, layer)
            found += 1
    assert found > 10
    ahead.close()


def test_a_file_that_became_shorter_or_cannot_be_read_is_told(sender: NativeUploader, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(5000))
    source, target = numbers(6000), torch.zeros(6000, dtype=torch.uint8)

    def stored(count: int, file: IO[bytes]) -> list[Stored]:
        return [Stored(source, 0, count, source.data_ptr(), file.fileno())]

    with path.open("rb") as file:
        short, good = sender.start([(stored(6000, file), target), (stored(5000, file), target[:5000])])
        with pytest.raises(WorkerError, match=r"6,000 bytes of weights .* No data"):
            sender.finish(short)
        sender.finish(good)
    with path.open("ab") as file:
        (sending,) = sender.start([(stored(6000, file), target)])
        with pytest.raises(WorkerError, match="Bad file descriptor"):
            sender.finish(sending)


def test_there_is_none_for_a_host() -> None:
    assert native_uploader(HOST) is None
