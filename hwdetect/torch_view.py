"""What torch sees, and how fast memory moves between devices: each asked in a process of its own, with a time limit.

This package never imports torch itself.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from hwdetect import command, jsontext
from hwdetect.accelerator import Vendor
from hwdetect.machine import Machine, Note, Severity
from hwdetect.text import clean

IMPORT_LIMIT_S = 30.0
_SAME_MEMORY_SHARE = 0.05

_LIST = """
import json, sys
sys.path[:] = {path!r}
try:
    import torch
except Exception as error:
    print(json.dumps({{"error": f"{{type(error).__name__}}: {{error}}"}})); sys.exit(0)
found = []
for kind in ("cuda", "xpu", "npu", "musa", "mlu", "gcu", "hpu"):
    api = getattr(torch, kind, None)
    try:
        if api is None or not api.is_available():
            continue
        for n in range(api.device_count()):
            told = api.get_device_properties(n)
            found.append({{"kind": kind, "index": n, "name": getattr(told, "name", None),
                          "memory": getattr(told, "total_memory", None)}})
    except Exception as error:
        found.append({{"kind": kind, "error": f"{{type(error).__name__}}: {{error}}"}})
print(json.dumps({{"version": torch.__version__, "hip": getattr(torch.version, "hip", None),
                  "cuda": torch.version.cuda, "devices": found}}))
"""

_COPY = """
import json, sys, time
sys.path[:] = {path!r}
try:
    import torch
    count = torch.cuda.device_count()
except Exception as error:
    print(json.dumps({{"error": f"torch cannot be used: {{type(error).__name__}}: {{error}}"}})); sys.exit(0)
if not count:
    print(json.dumps({{"error": "torch sees no CUDA-like device"}})); sys.exit(0)
size = {megabytes} << 20
host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
pairs = []
def rate(target, source, here):
    target.copy_(source); torch.cuda.synchronize(here)
    start = time.perf_counter()
    for _ in range(4):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize(here)
    return 4 * size / (time.perf_counter() - start)
for n in range(count):
    mine = torch.empty(size, dtype=torch.uint8, device=f"cuda:{{n}}")
    pairs.append({{"source": "host", "target": n, "bytes_per_s": rate(mine, host, n)}})
    pairs.append({{"source": n, "target": "host", "bytes_per_s": rate(host, mine, n)}})
    for other in range(count):
        if other != n:
            theirs = torch.empty(size, dtype=torch.uint8, device=f"cuda:{{other}}")
            pairs.append({{"source": other, "target": n, "bytes_per_s": rate(mine, theirs, n)}})
print(json.dumps({{"pairs": pairs}}))
"""


@dataclass(frozen=True, slots=True)
class TorchDevice:
    kind: str
    index: int
    name: str | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class TorchView:
    """`version` is None if torch could not be asked; `problem` says why."""

    version: str | None
    devices: tuple[TorchDevice, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class LinkRate:
    """Measured copy rate; None stands for the host."""

    source: int | None
    target: int | None
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class LinkView:
    """What was measured; without `rates`, `problem` says why there are none."""

    rates: tuple[LinkRate, ...] = ()
    problem: str = ""


def look(limit_s: float = IMPORT_LIMIT_S) -> TorchView:
    """Blocks: as long as importing torch takes, at most `limit_s`."""
    output = command.run([sys.executable, "-c", _LIST.format(path=command.module_path())], limit_s=limit_s)
    if output is None or output.timed_out:
        return TorchView(None, problem=f"torch did not answer within {limit_s:.0f} s")
    answer = jsontext.load(clean(output.text))
    if not isinstance(answer, dict) or "version" not in answer:
        said = str(answer.get("error")) if isinstance(answer, dict) else f"status {output.exit_status}"
        return TorchView(None, problem=f"torch cannot be imported: {said}")
    entries = [entry for entry in answer.get("devices") or [] if isinstance(entry, dict)]
    errors = [str(entry["error"]) for entry in entries if "error" in entry]
    devices = tuple(
        TorchDevice(entry["kind"], entry["index"], entry.get("name"), entry.get("memory"))
        for entry in entries
        if "error" not in entry
    )
    return TorchView(str(answer["version"]), devices, "; ".join(errors))


def compare(machine: Machine, view: TorchView) -> tuple[Note, ...]:
    """Where torch and the detection disagree about devices."""
    if view.version is None:
        return (Note(Severity.WARNING, "torch", view.problem),)
    notes: list[Note] = []
    usable = [d for d in machine.usable_accelerators if d.vendor is not Vendor.BIREN]
    slices = sum(len(d.partitions) for d in usable if d.partition_mode == "MIG")
    if usable and not view.devices:
        text = f"{len(usable)} usable accelerators were found and torch {view.version} sees none"
        fix = "install the torch build for this vendor; for NVIDIA one with CUDA, not the CPU one"
        notes.append(Note(Severity.WARNING, "torch", text, fix))
    elif len(view.devices) > len(usable) + slices:
        text = f"torch sees {len(view.devices)} devices and only {len(usable)} were found usable"
        notes.append(Note(Severity.WARNING, "torch", text))
    elif 0 < len(view.devices) < len(usable):
        text = f"torch sees {len(view.devices)} of {len(usable)} usable accelerators"
        notes.append(Note(Severity.WARNING, "torch", text, "look at CUDA_VISIBLE_DEVICES and its like"))
    for seen, device in zip(view.devices, usable, strict=False):
        total = device.memory_total_bytes
        if seen.memory_bytes and total and abs(seen.memory_bytes - total) > _SAME_MEMORY_SHARE * total:
            text = f"torch gives device {seen.index} {seen.memory_bytes} bytes and the driver {total}"
            notes.append(Note(Severity.INFO, "torch", text))
    if view.problem:
        notes.append(Note(Severity.WARNING, "torch", view.problem))
    return tuple(notes)


def measure_links(megabytes: int = 128, limit_s: float = 60.0) -> LinkView:
    """Copy rates between the host and each CUDA-like device and between devices.

    Blocks: up to `limit_s`. Uses `megabytes` on every device.
    """
    output = command.run(
        [sys.executable, "-c", _COPY.format(path=command.module_path(), megabytes=megabytes)], limit_s=limit_s
    )
    if output is None or output.timed_out:
        return LinkView(problem=f"the copies did not end within {limit_s:.0f} s")
    # Libraries may print above the answer
    last = next((line for line in reversed(clean(output.text).splitlines()) if line.startswith("{")), "")
    answer: Any = jsontext.load(last)
    if not isinstance(answer, dict):
        return LinkView(problem=f"the copying process ended with status {output.exit_status}")
    pairs = answer.get("pairs")
    if not isinstance(pairs, list):
        return LinkView(problem=str(answer.get("error")))
    return LinkView(tuple(LinkRate(_end(p["source"]), _end(p["target"]), float(p["bytes_per_s"])) for p in pairs))


def _end(name: Any) -> int | None:
    return None if name == "host" else int(name)
