"""Large host tensors arrive whole on an accelerator, whatever part of a buffer they end in."""

from __future__ import annotations

import pytest
import torch

from engine.devices.upload import upload
from engine.devices.uploader import BUFFER_BYTES

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
