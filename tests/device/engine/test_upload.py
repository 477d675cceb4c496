"""Large host tensors arrive whole on an accelerator, whatever part of a buffer they end in."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from engine.devices.upload import prepare, reading_ahead, upload, upload_group
from engine.devices.uploader import BUFFER_BYTES, Stored

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]


@pytest.mark.parametrize("count", [1, 5 << 20, BUFFER_BYTES, 40 * BUFFER_BYTES + 12_346])
def test_tensor_arrives_as_it_was(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    source = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
    device = torch.device("cuda", 0)
    assert torch.equal(upload(source, device).cpu(), source)
    rows = source[: count // 2 * 2].view(torch.float16)
    assert torch.equal(upload(rows, device).cpu().view(torch.uint8), rows.view(torch.uint8))


def test_what_was_queued_on_the_device_before_is_not_overtaken() -> None:
    device = torch.device("cuda", 0)
    source = torch.full((3 * BUFFER_BYTES,), 7, dtype=torch.uint8)
    for _ in range(5):
        torch.full((3 * BUFFER_BYTES,), 1, dtype=torch.uint8, device=device)  # its memory is the next one's
        assert bool((upload(source, device) == 7).all())


def test_groups_of_a_file_are_read_ahead_and_lie_side_by_side(tmp_path: Path) -> None:
    """As a load does: many small matrices asked for at once, a large one by itself, one that nobody asks for."""
    device = torch.device("cuda", 0)
    sizes = [256 * (1 + 37 * i) for i in range(400)] + [3 * BUFFER_BYTES + 512, 9 << 20]
    path = tmp_path / "weights"
    path.write_bytes(torch.randint(0, 256, (sum(sizes),), dtype=torch.uint8).numpy().tobytes())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        whole = torch.frombuffer(bytearray(mapped), dtype=torch.uint8)
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        stored = [
            Stored(whole, start, size, whole.data_ptr() + start, file.fileno())
            for start, size in zip(starts, sizes, strict=True)
        ]
        prepare(device)
        with reading_ahead(device) as read_ahead:
            read_ahead([stored[:400], [stored[400]], [stored[401]]])
            many = upload_group([one.key for one in stored[:400]], device)
            large = upload(whole[starts[400] : starts[401]], device)
    assert many is not None
    assert torch.equal(many.cpu(), whole[: starts[400]])
    assert torch.equal(large.cpu(), whole[starts[400] : starts[401]])
