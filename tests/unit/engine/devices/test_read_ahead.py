"""Reading ahead, on a device that is this host: what is asked for is found, within the limit, whatever was foreseen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.devices.upload import ReadAhead
from engine.devices.uploader import BUFFER_BYTES, Stored, Uploader
from engine.quant.quant_tensor import stacked
from tests.fakes.host_streams import HostStreams

MIB = 1 << 20


@pytest.fixture(scope="module")
def sender() -> Uploader:
    return Uploader(torch.device("cpu"), HostStreams(), threads=2, pinned=False)


def tensors(*sizes: int) -> list[torch.Tensor]:
    return [torch.randint(0, 99, (size,), dtype=torch.int16) for size in sizes]


def alone(found: list[torch.Tensor]) -> list[list[Stored]]:
    """Each a group of its own."""
    return [[Stored.of(tensor)] for tensor in found]


class Counted:
    """Groups that count how many were asked for."""

    def __init__(self, found: list[torch.Tensor]) -> None:
        self.found, self.taken = found, 0

    def __iter__(self) -> Iterator[list[Stored]]:
        for group in alone(self.found):
            self.taken += 1
            yield group


def test_what_is_asked_for_in_order_is_there_once(sender: Uploader) -> None:
    coming = tensors(5, 3 * MIB, 70, 9 * MIB, 1, MIB)
    ahead = ReadAhead(alone(coming), sender, limit_bytes=40 * MIB)
    ahead.fill()
    for tensor in coming:
        shaped = tensor.view(1, -1)
        found = ahead.take(shaped)
        assert found is not None
        assert found.shape == shaped.shape
        assert found.data_ptr() != tensor.data_ptr()
        assert torch.equal(found, shaped)
    assert ahead.take(coming[0]) is None
    ahead.close()


def test_those_of_a_group_lie_side_by_side_there(sender: Uploader) -> None:
    first, second, third, last = tensors(256, MIB, 128, 7)
    ahead = ReadAhead([[*alone([third])[0], *alone([first])[0], *alone([second])[0]], *alone([last])], sender)
    ahead.fill()
    taken = [ahead.take(tensor.view(-1, 128)) for tensor in (first, second, third)]
    found = [tensor for tensor in taken if tensor is not None]
    assert all(
        torch.equal(mine, theirs.view(-1, 128)) for mine, theirs in zip(found, (first, second, third), strict=True)
    )
    whole = stacked([found[2], found[0], found[1]])
    assert whole.data_ptr() == found[2].data_ptr()
    assert torch.equal(whole, torch.cat([found[2], found[0], found[1]]))
    assert stacked(found).data_ptr() != found[0].data_ptr(), "they lie in another order"
    assert torch.equal(stacked(found), torch.cat(found))
    ahead.close()


def test_a_group_is_taken_at_once_if_all_of_it_is_there_in_that_order(sender: Uploader) -> None:
    parts = tensors(256, MIB, 128)
    stored = [Stored.of(tensor) for tensor in parts]
    keys = [one.key for one in stored]
    ahead = ReadAhead([stored, [Stored.of(tensor) for tensor in tensors(9)]], sender, limit_bytes=40 * MIB)
    ahead.fill()
    assert ahead.take_group([keys[1], keys[0], keys[2]]) is None, "another order"
    assert ahead.take_group(keys[:2]) is None, "a part of it"
    assert ahead.take_group([*keys, (1, 1)]) is None, "more than it"
    found = ahead.take_group(keys)
    assert found is not None
    assert torch.equal(found, torch.cat(parts).view(torch.uint8))
    assert ahead.take_group(keys) is None, "it is gone"
    ahead.close()


def test_no_more_than_the_limit_is_read_ahead_but_one_tensor_that_is_larger(sender: Uploader) -> None:
    coming = Counted(tensors(*[4 * MIB] * 20))  # of 8 MiB
    ahead = ReadAhead(coming, sender, limit_bytes=24 * MIB)
    ahead.fill()
    assert coming.taken <= 4
    assert ahead.take(coming.found[0]) is not None
    assert coming.taken <= 5
    ahead.close()
    large = Counted(tensors(3 * BUFFER_BYTES, 10))
    ahead = ReadAhead(large, sender, limit_bytes=BUFFER_BYTES)
    ahead.fill()
    found = ahead.take(large.found[0])
    assert found is not None
    assert torch.equal(found, large.found[0])
    assert ahead.take(large.found[1]) is not None
    ahead.close()


def test_what_nobody_asks_for_does_not_stop_what_follows(sender: Uploader) -> None:
    coming = tensors(*[4 * MIB] * 12)
    ahead = ReadAhead(alone(coming), sender, limit_bytes=16 * MIB)
    ahead.fill()
    found = [ahead.take(tensor) for tensor in coming[3:]]
    assert sum(tensor is not None for tensor in found) >= len(found) - 3
    for tensor, asked in zip(found, coming[3:], strict=True):
        assert tensor is None or torch.equal(tensor, asked)
    ahead.close()


def test_without_room_on_the_device_nothing_more_is_read_ahead(
    sender: Uploader, monkeypatch: pytest.MonkeyPatch
) -> None:
    coming = Counted(tensors(10, 20, 30))
    ahead = ReadAhead(coming, sender)

    def full(*_: object, **__: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("full")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", full)
        ahead.fill()
    ahead.fill()
    assert coming.taken == 1
    assert ahead.take(coming.found[0]) is None
    ahead.close()
