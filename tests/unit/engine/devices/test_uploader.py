"""The threads that send tensors, on a device that is this host: every byte arrives, and what fails is told."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from engine.devices.uploader import BUFFER_BYTES, LEAST_PIECE_BYTES, Sending, Stored, Uploader, jobs_of, piece_bytes
from tests.fakes.host_streams import HostStreams

HOST = torch.device("cpu")


def uploader(threads: int = 3) -> Uploader:
    return Uploader(HOST, HostStreams(), threads=threads, pinned=False)


def numbers(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("threads", [1, 8, 16])
@pytest.mark.parametrize("count", [1, LEAST_PIECE_BYTES, 33 << 20, 117 << 20, (1 << 30) + 5])
def test_pieces_fit_a_buffer_and_give_every_thread_one_where_there_is_enough(count: int, threads: int) -> None:
    piece = piece_bytes(count, threads)
    assert LEAST_PIECE_BYTES <= piece <= BUFFER_BYTES
    assert piece % LEAST_PIECE_BYTES == 0
    pieces = -(-count // piece)
    if count >= 2 * threads * LEAST_PIECE_BYTES:
        assert pieces >= threads / 2
    if piece < BUFFER_BYTES:
        assert pieces <= threads, "one turn is enough"


@pytest.mark.parametrize("sizes", [[10], [10, 20, 30], [100, 1, 250, 0, 7], [64, 64], [0]])
@pytest.mark.parametrize("together", [1, 2, 9])
def test_jobs_cover_every_byte_once_and_fill_their_buffers(sizes: list[int], together: int) -> None:
    sources = [Stored.of(numbers(size, seed=size)) for size in sizes]
    groups = [sources[start : start + together] for start in range(0, len(sources), together)]
    sendings = [Sending(group, torch.zeros(sum(one.num_bytes for one in group), dtype=torch.uint8)) for group in groups]
    jobs = list(jobs_of(sendings, 64))
    assert [sum(len(source) for _, source, _ in job) for job in jobs[:-1]] == [64] * (len(jobs) - 1)
    for _, source, target in (piece for job in jobs for piece in job):
        target += source  # on zeros: one that is covered twice is wrong
    for group, sending in zip(groups, sendings, strict=True):
        assert torch.equal(torch.cat([one.whole for one in group]), sending.target)


@pytest.mark.parametrize("count", [1, 5 << 20, 2 * BUFFER_BYTES + 12_346])
def test_one_tensor_arrives_as_it_was(count: int) -> None:
    source = numbers(count)
    target = torch.zeros_like(source)
    uploader().copy(source, target)
    assert torch.equal(source, target)


def test_many_tensors_arrive_in_any_order_of_asking() -> None:
    sender = uploader()
    sources = [numbers(1 + 37_001 * i, seed=i) for i in range(60)] + [numbers(3 * BUFFER_BYTES + 1), numbers(0)]
    targets = [torch.zeros_like(source) for source in sources]
    sendings = sender.start(([Stored.of(source)], target) for source, target in zip(sources, targets, strict=True))
    for sending in reversed(sendings):
        sender.finish(sending)
    assert all(torch.equal(source, target) for source, target in zip(sources, targets, strict=True))


def test_what_a_thread_meets_is_told_to_who_waits_and_to_nobody_else() -> None:
    sender = uploader(threads=1)
    good, small = numbers(1000), torch.zeros(10, dtype=torch.uint8)
    (bad,) = sender.start([([Stored.of(numbers(1000))], small)])
    (fine,) = sender.start([([Stored.of(good)], torch.zeros_like(good))])
    with pytest.raises(RuntimeError, match="size"):
        sender.finish(bad)
    sender.finish(fine)
    assert torch.equal(fine.target, good)


def test_threads_end_after_what_is_queued() -> None:
    before = threading.active_count()
    sender = uploader(threads=4)
    assert threading.active_count() == before + 4
    sources = [numbers(10_000, seed=i) for i in range(20)]
    sendings = sender.start([([Stored.of(source)], torch.zeros_like(source)) for source in sources])
    sender.close()
    for source, sending in zip(sources, sendings, strict=True):
        sender.finish(sending)
        assert torch.equal(source, sending.target)
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before
