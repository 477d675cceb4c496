"""Contents of storages put aside and brought back in place, and the storages that an object keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import pytest
import torch

from engine.devices import host_copy
from engine.devices.cpu import CpuDevice
from engine.devices.host_copy import HostCopy
from engine.devices.reachable import storages_of
from engine.errors import DoesNotFit


@dataclass
class Part:
    weight: torch.Tensor
    more: dict[str, list[torch.Tensor]] = field(default_factory=dict)


Part.__module__ = "engine.layers.fake"


def test_tensors_and_views_are_as_they_were_after_their_storages_were_empty() -> None:
    device, told = CpuDevice(), []
    whole = torch.arange(3000, dtype=torch.float32)
    view, other = whole[100:200].view(10, 10), torch.full((77,), 5, dtype=torch.uint8)
    before = [tensor.clone() for tensor in (whole, view, other)]
    storages = [whole.untyped_storage(), other.untyped_storage()]
    aside = HostCopy(storages, device, lambda done, total: told.append((done, total)))
    assert [storage.nbytes() for storage in storages] == [0, 0]
    assert told[-1] == (12_077, aside.num_bytes)
    aside.restore(lambda done, total: None)
    assert all(torch.equal(a, b) for a, b in zip((whole, view, other), before, strict=True))
    assert view.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def test_no_room_on_the_host_or_the_device_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    device, tensor = CpuDevice(), torch.ones(1000)
    monkeypatch.setattr(host_copy.CpuDevice, "free_bytes", lambda self: 1 << 30)
    with pytest.raises(DoesNotFit, match="host memory that are free"):
        HostCopy([tensor.untyped_storage()], device, lambda done, total: None)
    assert tensor.sum() == 1000
    monkeypatch.setattr(host_copy.CpuDevice, "free_bytes", lambda self: 4 << 30)
    aside = HostCopy([tensor.untyped_storage()], device, lambda done, total: None)
    with pytest.raises(DoesNotFit, match="beside them"):
        aside.restore(lambda done, total: None, beside_bytes=4 << 30)
    assert tensor.untyped_storage().nbytes() == 0
    aside.restore(lambda done, total: None)
    assert tensor.sum() == 1000


def test_storages_are_found_through_engine_objects_containers_and_closures_each_once() -> None:
    shared, hidden, bound, foreign = (torch.ones(n + 1) for n in range(4))

    class Outside:
        def __init__(self) -> None:
            self.tensor = foreign

    root = Part(shared, {"a": [shared[:1]], "f": [lambda: hidden, partial(torch.add, bound)]})  # type: ignore[list-item]
    root.more["o"] = [Outside()]  # type: ignore[list-item]
    found = {storage.data_ptr() for storage in storages_of([root], torch.device("cpu"))}
    assert found == {tensor.untyped_storage().data_ptr() for tensor in (shared, hidden, bound)}
