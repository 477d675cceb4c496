"""Where a step's time goes on a device, by kind of kernel: what torch's profiler saw of replayed steps.

A kernel that starts while the one before is at work counts from that one's end: until then it waits for it, or fills
what it leaves idle.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from bench.steadiness import Streams
from engine.core import EngineCore
from engine.devices import Device
from engine.messages import SamplingParams, Submit

STEPS = 10
# Kind -> what its kernels' names hold; the first kind that fits.
KINDS: dict[str, tuple[str, ...]] = {
    "experts": ("gate_up_kernel", "down_kernel", "_count_kernel", "_scan_kernel", "_place_kernel", "_route_kernel",
                "_spread_kernel", "_sum_kernel"),
    "attention": ("_decode_kernel", "_decode_bytes", "_merge_kernel", "_prefill_kernel", "_latent_kernel", "flash",
                  "fmha", "sdpa", "attention"),
    "rotation and cache": ("_rope", "_kv_write", "_write_bytes", "_write_kernel"),
    "choosing": ("_part_kernel", "_whole_kernel", "_choose_kernel", "argmax", "softmax"),
    "norms and gates": ("_rms_norm", "_gate_kernel", "_quantise_kernel", "_norm_fine", "_fine_kernel",
                        "_round_kernel", "_round_norm"),
    "products": ("gemv", "gemm", "nvjet", "cutlass", "_rows_kernel", "_dots_kernel", "splitk", "cublas", "_to_e4m3",
                 "_pipeline_kernel", "_dequantise"),
    "copies": ("memcpy", "memset", "copy", "cat"),
}  # fmt: skip
OTHER = "other"


def kind_of(kernel: str) -> str:
    name = kernel.lower()
    return next((kind for kind, marks in KINDS.items() if any(mark in name for mark in marks)), OTHER)


def profiled_decode(core: EngineCore, device: Device, prompts: list[list[int]]) -> dict[str, object]:
    """Decode steps of streams with these prompts, after they have settled."""
    streams = Streams(core, prompts)
    for _ in range(STEPS):
        streams.step()
    device.synchronize()
    began = time.perf_counter()
    for _ in range(STEPS):
        streams.step()
    device.synchronize()
    took_s = (time.perf_counter() - began) / STEPS

    def steps() -> None:
        for _ in range(STEPS):
            streams.step()

    found = _profiled(steps, device, STEPS)
    streams.stop()
    return {"ms": round(took_s * 1e3, 3), **found}


def profiled_prefill(core: EngineCore, device: Device, prompts: list[list[int]]) -> dict[str, object]:
    """One prompt and its first token, without a cached prefix. prompts: three alike; the last two are looked at"""

    def run(number: int) -> None:
        sampling = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        core.add(Submit(f"profiled{number}", prompts[number], sampling))
        while core.has_work():
            core.step()

    run(0)
    device.synchronize()
    began = time.perf_counter()
    run(1)
    device.synchronize()
    took_s = time.perf_counter() - began
    return {"ms": round(took_s * 1e3, 3), **_profiled(lambda: run(2), device, 1)}


def _profiled(run: Callable[[], None], device: Device, steps: int) -> dict[str, object]:
    """Milliseconds of a step by kind, the kernels of each kind that took longest, and what no kernel ran in."""
    if device.torch_device.type != "cuda":
        return {"parts": None}
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        run()
        device.synchronize()
    spans = [
        (event.time_range.start, event.time_range.end, event.name)
        for event in profile.events() or []
        if str(event.device_type).endswith("CUDA")
    ]
    names, last = attributed(spans)
    parts: dict[str, float] = {}
    for name, took in names.items():
        parts[kind_of(name)] = parts.get(kind_of(name), 0.0) + took
    busy = sum(parts.values())
    longest = sorted(names.items(), key=lambda item: -item[1])[:12]
    return {
        "parts": {kind: round(us / steps / 1e3, 4) for kind, us in sorted(parts.items(), key=lambda item: -item[1])},
        "busy_ms": round(busy / steps / 1e3, 4),
        "idle_ms": round((last - busy) / steps / 1e3, 4),
        "kernels": {name[:60]: round(us / steps / 1e3, 4) for name, us in longest},
    }


def attributed(spans: list[tuple[float, float, str]]) -> tuple[dict[str, float], float]:
    """(time of each name, from the first span's start to the last one's end); a moment belongs to the earliest span.

    spans: (start, end, name)
    """
    names: dict[str, float] = {}
    spans = sorted(spans)
    end = first = spans[0][0] if spans else 0.0
    for start, stop, name in spans:
        names[name] = names.get(name, 0.0) + max(0.0, stop - max(start, end))
        end = max(end, stop)
    return names, end - first
