"""Any accelerator whose torch backend follows the common device API: cuda and the stacks that speak it, npu, musa."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.devices.base import Capabilities
from engine.errors import DeviceUnusable


class AcceleratorDevice:
    def __init__(self, kind: str, index: int, extension: str | None) -> None:
        if extension is not None:
            _import_extension(kind, extension)
        self._api: Any = getattr(torch, kind, None)
        if self._api is None or not self._api.is_available():
            raise DeviceUnusable(f"torch sees no {kind} device.", "Run `bayard hw` to see what is missing.")
        count = self._api.device_count()
        if index >= count:
            raise DeviceUnusable(f"{kind}:{index} was asked for; there are {count}.", f"Use {kind}:0..{count - 1}.")
        self.torch_device = torch.device(kind, index)
        self._api.set_device(self.torch_device)
        self.runs_behind = True
        self.index_dtype = torch.int32
        self.notes: list[str] = []
        self.capabilities = self._probe(kind)
        self.default_dtype = torch.bfloat16 if self.capabilities.bf16 else torch.float16
        if not self.capabilities.triton:
            self.notes.append(f"No triton for {kind} here: the plain torch operators are used.")

    def free_bytes(self) -> int:
        free, _ = self._api.mem_get_info(self.torch_device)
        # What torch's allocator holds but does not use is ours to use again.
        return int(free) + int(self._api.memory_reserved()) - int(self._api.memory_allocated())

    def used_bytes(self) -> int:
        return int(self._api.memory_reserved())

    def synchronize(self) -> None:
        self._api.synchronize()

    def release_unused(self) -> None:
        self._api.empty_cache()

    def copy_to_device(self, array: NDArray[np.int32] | NDArray[np.float32]) -> torch.Tensor:
        # From pinned memory: a copy from pageable memory waits for everything queued before it.
        return torch.from_numpy(array).pin_memory().to(self.torch_device, non_blocking=True)

    def copy_to_host(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None]]:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        return host, self.mark()

    def mark(self) -> Callable[[], None]:
        event = self._api.Event()
        event.record()
        wait: Callable[[], None] = event.synchronize
        return wait

    def pinned_ints(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.int32, pin_memory=True)

    def capture_graph(self, run: Callable[[], torch.Tensor], memory: object) -> tuple[object, torch.Tensor, object]:
        """Two runs first, on a side stream: kernels compile and libraries make their handles outside the capture."""
        side = self._api.Stream()
        side.wait_stream(self._api.current_stream())
        with self._api.stream(side):
            for _ in range(2):
                run()
        self._api.current_stream().wait_stream(side)
        self._api.synchronize()
        graph: Any = self._graph_type()
        memory = memory or self._api.graph_pool_handle()
        with self._api.graph(graph, pool=memory):
            result = run()
        return graph, result, memory

    def replay_graph(self, graph: Any) -> None:
        graph.replay()

    def _probe(self, kind: str) -> Capabilities:
        bf16 = getattr(self._api, "is_bf16_supported", lambda: True)()
        capability = getattr(self._api, "get_device_capability", lambda _: (0, 0))(self.torch_device)
        # fp8 matrix units came to the CUDA API with capability 8.9; other stacks answer with their own numbers.
        fp8 = kind == "cuda" and torch.version.cuda is not None and tuple(capability) >= (8, 9)
        names = ("CUDAGraph", "NPUGraph", "MUSAGraph", "MLUGraph")
        self._graph_type: Any = next((getattr(self._api, name) for name in names if hasattr(self._api, name)), None)
        return Capabilities(
            bf16=bool(bf16),
            fp8=fp8,
            triton=_has_triton(),
            graphs=self._graph_type is not None,
            host_visible_memory=False,
        )


def _import_extension(kind: str, extension: str) -> ModuleType:
    try:
        return importlib.import_module(extension)
    except ImportError as error:
        raise DeviceUnusable(
            f"{kind} needs the Python package {extension}: {error}.", "Install the vendor's torch."
        ) from error


def _has_triton() -> bool:
    try:
        importlib.import_module("triton")
    except ImportError:
        return False
    return True
