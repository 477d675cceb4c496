"""What this machine really does, in seconds: `python -m engine.calibrate --device cpu` prints one JSON object.

Times the kernels that the registry would choose, on matrices larger than any cache, and stops within --seconds. The
daemon runs it in a process of its own, because it never imports torch.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Callable

import torch

from engine.calibrate_links import link_rates
from engine.calibrate_overheads import LAYERS, Overheads
from engine.calibrate_steps import KIND as SMALL_KIND
from engine.calibrate_steps import StepOverheads, step_overheads
from engine.devices import Device, open_device
from engine.devices.cpu import usable_cpus
from engine.ggml_types import COMPUTABLE_TYPES, TYPE_BY_NAME
from engine.kernels.cpu import library as cpu_library
from engine.kernels.registry import OpQuery, select, why
from engine.quant.coded_tensor import CODED_KINDS, HALF_BYTE_KINDS, CodedTensor
from engine.quant.encode import encode
from engine.quant.quant_tensor import QuantTensor

KINDS = ("Q4_K", "Q4_0", "Q4_1", "Q8_0", "Q6_K", "BF16", "F32")
ROWS = (1, 256, 16, 4, 64)  # both ends first: time may run out
KNOWN_KINDS = (*COMPUTABLE_TYPES, *CODED_KINDS)
_DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_PLAIN = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_COLUMNS = 2048
_LARGE_ROWS = 4096
_SMALL_ROWS = 512
_DEVICE_COLUMNS, _DEVICE_ROWS = 4096, 28672  # small matrices do not fill a GPU; of a size that models have
_MANY_ROWS = 16
_RECORDED_ROWS = 64
_ROUNDS = 3
_LONGEST_PACKING = 0.75  # of the time, with what kernels take to compile
_OVERRUN_S = 4.0
_LEAST_POINTS = 2  # of each kind, however long they take
_HOST_BYTES = 128 << 20  # of matrices of one kind on a CPU: several times what a cache of a few cores keeps
_DEVICE_BYTES = 1 << 30

log = logging.getLogger("bayard.calibrate")


class Bench:
    """Times callables against one deadline. Owner: main."""

    def __init__(self, device: Device, seconds: float) -> None:
        self._device = device
        self._deadline = time.perf_counter() + seconds

    def put_off(self, seconds: float) -> None:
        """The deadline: by what something took that is not timed against it."""
        self._deadline += seconds

    @property
    def left_s(self) -> float:
        return max(0.0, self._deadline - time.perf_counter())

    @property
    def is_late(self) -> bool:
        """Beyond what may be taken longer for the sake of a first look at everything."""
        return time.perf_counter() > self._deadline + _OVERRUN_S

    def recorded(self, work: Callable[[], torch.Tensor]) -> Callable[[], object]:
        """The work as the engine would run it: one replayed graph where the device has them."""
        if not self._device.capabilities.graphs:
            return work
        try:
            graph, _, _ = self._device.capture_graph(work, None)
        except RuntimeError:  # it asks the host for something: the engine does not record it either
            log.warning("not_recorded", exc_info=True)
            return work
        return lambda: self._device.replay_graph(graph)

    def best_s(self, work: Callable[[], object], at_most_s: float, at_least: int = 2) -> float:
        """The best of several runs after one that warms up."""
        work()
        self._device.synchronize()
        best, spent, runs = float("inf"), 0.0, 0
        while runs < at_least or (spent < min(at_most_s, self.left_s) and runs < 50):
            began = time.perf_counter()
            work()
            self._device.synchronize()
            elapsed = time.perf_counter() - began
            best, spent, runs = min(best, elapsed), spent + elapsed, runs + 1
        return best


def read_bytes_per_s(bench: Bench, device: torch.device, slice_s: float) -> float:
    """Streaming read of plain memory."""
    size = 2 * _HOST_BYTES if device.type == "cpu" else _DEVICE_BYTES
    data = torch.ones(size // 4, dtype=torch.float32, device=device)
    return size / bench.best_s(data.sum, slice_s, at_least=3)


def matrix(kind: str, rows: int, columns: int, device: torch.device) -> QuantTensor | CodedTensor | torch.Tensor:
    """A weight [rows, columns] of this kind."""
    if kind in _PLAIN:
        return torch.full((rows, columns), 0.01, dtype=_PLAIN[kind], device=device)
    if kind in CODED_KINDS:  # as rounding at load makes them
        return encode(torch.full((rows, columns), 0.01, device=device), kind, asymmetric=kind == "int4")
    # 0x2c bytes: every half-precision scale in them is a normal number, so nothing runs into denormals
    row_bytes = TYPE_BY_NAME[kind].row_bytes(columns)
    return QuantTensor(kind, torch.full((rows, row_bytes), 0x2C, dtype=torch.uint8, device=device), (rows, columns))


def row_bytes(kind: str, columns: int) -> int:
    """Of codes, without their multipliers, for the kinds that a file does not name."""
    if kind in CODED_KINDS:
        return columns // 2 if kind in HALF_BYTE_KINDS else columns
    return TYPE_BY_NAME[kind].row_bytes(columns)


class LinearProbe:
    """One kind of weights in the form its kernel reads, and the best times seen so far."""

    def __init__(self, kind: str, device: torch.device, dtype: torch.dtype, capabilities: frozenset[str]) -> None:
        query = OpQuery(device.type, _DTYPE_NAMES[dtype], weight_kind=kind, capabilities=capabilities)
        impl = select("linear", query)
        self.why = why("linear", query)
        self._run = impl.run
        pack = impl.pack if impl.pack is not None else lambda weight: weight
        on_cpu = device.type == "cpu"
        total = _HOST_BYTES if on_cpu else _DEVICE_BYTES
        rows, columns = (_LARGE_ROWS, _COLUMNS) if on_cpu else (_DEVICE_ROWS, _DEVICE_COLUMNS)
        count = max(2, total // (rows * row_bytes(kind, columns)))
        # Few rows: matrices that come from memory. Many: arithmetic takes longest, and one small enough to end before
        # the scheduler gives the core to somebody else shows it undisturbed.
        self._large = [pack(matrix(kind, rows, columns, device)) for _ in range(count)]
        small_rows = _SMALL_ROWS if on_cpu else rows
        self._small = [pack(matrix(kind, small_rows, columns, device))]
        self._elements = {False: rows * columns * count, True: small_rows * columns}
        self._inputs = {many: torch.full((many, columns), 0.5, dtype=dtype, device=device) for many in ROWS}
        self._best: dict[int, float] = {}
        self._recorded: dict[int, Callable[[], object]] = {}

    def measure(self, bench: Bench, rows: int, slice_s: float) -> None:
        many = rows >= _MANY_ROWS
        used, x = self._small if many else self._large, self._inputs[rows]

        def work() -> torch.Tensor:
            for weight in used:
                out: torch.Tensor = self._run(x, weight, None)
            return out

        if rows not in self._recorded:
            # Steps of so many rows are of prompts, which the engine does not record.
            self._recorded[rows] = work if rows > _RECORDED_ROWS else bench.recorded(work)
        seconds = bench.best_s(self._recorded[rows], slice_s, at_least=1) / self._elements[many]
        self._best[rows] = min(seconds, self._best.get(rows, seconds))

    def points(self) -> list[tuple[int, float]]:
        """(rows, seconds per weight). More rows never take less time: a point that says so was disturbed."""
        found: list[tuple[int, float]] = []
        for rows in sorted(self._best, reverse=True):
            seconds = self._best[rows]
            found.append((rows, min(seconds, found[-1][1]) if found else seconds))
        return found[::-1]


def linear_points(bench: Bench, probes: list[LinearProbe]) -> None:
    """Times in rounds over every kind and row count, so that a disturbance does not fall on one of them alone."""
    for left in range(_ROUNDS, 0, -1):
        slice_s = bench.left_s / left / (len(probes) * len(ROWS) or 1)
        for number, rows in enumerate(ROWS):
            for probe in probes:
                if bench.left_s <= 0 and (left < _ROUNDS or (number >= _LEAST_POINTS and bench.is_late)):
                    return  # a kernel's first run may compile it
                probe.measure(bench, rows, slice_s)


def attention_rates(
    bench: Bench, device: torch.device, dtype: torch.dtype, capabilities: frozenset[str], slice_s: float
) -> tuple[float, float]:
    """(KV bytes read per second by decodes, operations per second of a prompt chunk)."""
    # 64 MiB of keys and values in float32: more than a cache holds
    heads, groups, dim, page, context, sequences, chunk = 16, 4, 64, 16, 1024, 32, 256
    query = OpQuery(
        device.type, _DTYPE_NAMES[dtype], kv_dtype=_DTYPE_NAMES[dtype], head_dim=dim, capabilities=capabilities
    )
    run = select("paged_attention", query).run
    blocks = context // page
    view = torch.full((sequences * blocks, 2, groups, page, dim), 0.01, dtype=dtype, device=device)
    tables = torch.arange(sequences * blocks, dtype=torch.int32, device=device).reshape(sequences, blocks)

    def attend(new_tokens: int, count: int) -> Callable[[], torch.Tensor]:
        q = torch.full((count * new_tokens, heads, dim), 0.1, dtype=dtype, device=device)
        starts = torch.arange(0, count * new_tokens + 1, new_tokens, dtype=torch.int32, device=device)
        lens = torch.full((count,), context, dtype=torch.int32, device=device)
        return lambda: run(q, view, tables[:count], starts, lens, dim**-0.5, None, None, None)

    decode_s = bench.best_s(bench.recorded(attend(1, sequences)), slice_s / 2)
    chunk_s = bench.best_s(attend(chunk, 1), slice_s / 2)
    return view.numel() * view.element_size() / decode_s, 4.0 * chunk * context * heads * dim / chunk_s


def calibrate(device_name: str, threads: int, seconds: float, wanted: tuple[str, ...] = KINDS) -> dict[str, object]:
    """Measure; the kinds wanted first are the last to be left out.

    Blocks: for at most about `seconds`. Raises: DeviceUnusable."""
    load = os.getloadavg()[0]
    device = open_device(device_name)
    torch_device = device.torch_device
    if torch_device.type == "cpu":
        torch.set_num_threads(threads or usable_cpus())
        if cpu_library.absent_reason() is None:
            cpu_library.set_threads(threads)
    dtype = device.default_dtype
    capabilities = device.capabilities.names()
    bench = Bench(device, seconds)
    slice_s = seconds / 10
    read = read_bytes_per_s(bench, torch_device, slice_s / 2)
    links = link_rates(device, lambda work: bench.best_s(work, slice_s / 6))
    with torch.inference_mode():
        kv_read, attention_flops = attention_rates(bench, torch_device, dtype, capabilities, slice_s)
        overheads = Overheads(torch_device, dtype, capabilities)
        began = time.perf_counter()
        steps = _steps(device, threads, slice_s)
        bench.put_off(time.perf_counter() - began)  # mostly for loading
        layer_s = bench.best_s(bench.recorded(overheads.layers), slice_s / 2) / LAYERS
        experts_s = bench.best_s(bench.recorded(overheads.experts), slice_s / 2) / LAYERS
        probes: dict[str, LinearProbe] = {}
        for kind in wanted if steps is None else dict.fromkeys((*wanted, SMALL_KIND)):
            if probes and bench.left_s < seconds * (1 - _LONGEST_PACKING):
                break  # fewer kinds, measured well
            probes[kind] = LinearProbe(kind, torch_device, dtype, capabilities)
        linear_points(bench, list(probes.values()))
    if steps is not None and SMALL_KIND in probes:
        layer_s = steps.layer_s(probes[SMALL_KIND].points()[0][1])
    return {
        "device": device_name,
        "threads": torch.get_num_threads() if torch_device.type == "cpu" else 0,
        "dtype": _DTYPE_NAMES[dtype],
        "read_bytes_per_s": read,
        "kv_read_bytes_per_s": kv_read,
        "attention_flops": attention_flops,
        "layer_overhead_s": layer_s,
        "links": links,
        "load_average": load,
        "step_overhead_s": None if steps is None else steps.step_s,
        "experts_overhead_s": experts_s,
        "kinds": {kind: probe.points() for kind, probe in probes.items()},
        "kernels": {kind: probe.why for kind, probe in probes.items()},
        "left_out": [kind for kind in wanted if kind not in probes],
    }


def _steps(device: Device, threads: int, seconds: float) -> StepOverheads | None:
    """What steps cost where the CPU's library runs them whole; None elsewhere. Blocks: for a few seconds."""
    if device.torch_device.type != "cpu" or cpu_library.absent_reason() is not None:
        return None
    before = torch.get_num_threads()
    try:
        return step_overheads(str(device.torch_device), threads, seconds)
    finally:
        torch.set_num_threads(before)  # the engine leaves its own pool alone on the cores


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.calibrate", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: every core the process may use")
    parser.add_argument("--seconds", type=float, default=15.0, help="stop measuring after so long")
    parser.add_argument("--kinds", default=",".join(KINDS), help="weight kinds, the most wanted first")
    options = parser.parse_args(arguments)
    kinds = tuple(options.kinds.split(","))
    unknown = [kind for kind in kinds if kind not in KNOWN_KINDS]
    if unknown:
        parser.error(f"unknown weight kind {unknown[0]}; there are {', '.join(KNOWN_KINDS)}")
    sys.stdout.write(json.dumps(calibrate(options.device, options.threads, options.seconds, kinds)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
