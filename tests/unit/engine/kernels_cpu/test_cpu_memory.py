"""Memory for packed weights: aligned, apart from each other, freed with what shares it."""

from __future__ import annotations

import gc
import weakref

import pytest

from engine.kernels.cpu import memory
from engine.kernels.cpu.memory import ALIGN_BYTES, CHUNK_BYTES, huge_memory


@pytest.fixture(autouse=True)
def fresh_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_chunk", None)
    monkeypatch.setattr(memory, "_used", 0)


def test_pieces_are_aligned_and_do_not_overlap() -> None:
    pieces = [huge_memory(size) for size in (1, 63, 64, 65, 0, CHUNK_BYTES - 200, 4096, CHUNK_BYTES + 5)]
    for number, piece in enumerate(pieces):
        piece.fill_(number)
    for number, piece in enumerate(pieces):
        assert piece.data_ptr() % ALIGN_BYTES == 0 or not len(piece)
        assert bool((piece == number).all())


def test_chunk_goes_with_the_last_piece_of_it() -> None:
    first, second = huge_memory(10), huge_memory(10)
    chunk = weakref.ref(memory._chunk)
    huge_memory(CHUNK_BYTES - 64)  # begins another chunk
    del first
    gc.collect()
    assert chunk() is not None
    del second
    gc.collect()
    assert chunk() is None
