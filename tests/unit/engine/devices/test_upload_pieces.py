"""How a tensor is shared between the threads that send it."""

from __future__ import annotations

import pytest

from engine.devices.upload import BUFFER_BYTES, LEAST_PIECE_BYTES, piece_bytes


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
