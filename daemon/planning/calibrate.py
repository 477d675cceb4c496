"""Calibration: runs the engine's own probe in a process of its own and reads what it measured."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from daemon.planning.budget import DeviceBudget
from daemon.planning.datasheet import shipped_rates
from daemon.planning.rates import MEASURED, DeviceRates, KindRate, LinkRates
from engine.errors import Conflict, HardwareError
from engine.ggml_types import COMPUTABLE_TYPES
from engine.spec.loaded import KINDS

DEFAULT_SECONDS = 15.0
COMMON_KINDS = ("Q4_K", "Q8_0", "BF16", "F32", "Q6_K", "Q4_0")
COMMON_ON_ACCELERATOR = ("BF16", "fp8", "int4", "int8", "Q4_0", "Q8_0")
MEASURABLE = frozenset(COMPUTABLE_TYPES) | frozenset(KINDS.values()) - {"int8_mixed"}  # which reads as int8 does
_BUSY_LOAD = 0.7  # of others
_LOOK_S = 0.2  # how soon a cancelled calibration ends
_START_ALLOWANCE_S = 45.0  # importing torch on a slow disk, and the probe's last measurement


class Probe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What engine.calibrate prints."""

    device: str
    threads: int
    dtype: str
    read_bytes_per_s: float
    kv_read_bytes_per_s: float
    attention_flops: float
    layer_overhead_s: float
    experts_overhead_s: float
    kinds: dict[str, list[tuple[int, float]]]
    kernels: dict[str, str]
    left_out: list[str]
    links: LinkRates | None = None
    load_average: float = 0.0  # when it began
    step_overhead_s: float | None = None  # None: not measured on such a device


def kinds_for(on_cpu: bool, first: Iterable[str]) -> list[str]:
    """Weight kinds to measure on a device, the most wanted first."""
    wanted = (*first, *(COMMON_KINDS if on_cpu else COMMON_ON_ACCELERATOR))
    return [kind for kind in dict.fromkeys(wanted) if kind in MEASURABLE]


def never() -> bool:
    return False


def measure(
    budget: DeviceBudget,
    threads: int,
    seconds: float,
    first_kinds: Sequence[str] = (),
    cancelled: Callable[[], bool] = never,
) -> DeviceRates:
    """Measure one device; kinds of weights named first are the last to be left out when time runs short.

    Blocks: for about `seconds`, in which nothing else should compute; a moment once cancelled() is true.
    Raises: HardwareError with the probe's last line; Conflict when cancelled.
    """
    command = [sys.executable, "-m", "engine.calibrate", "--device", budget.device]
    command += ["--threads", str(threads), "--seconds", str(seconds)]
    if first_kinds:
        command += ["--kinds", ",".join(first_kinds)]
    status, printed, complaints = _run(command, budget.device, seconds + _START_ALLOWANCE_S, cancelled)
    if status != 0:
        last = (complaints.strip().splitlines() or ["no output"])[-1]
        raise HardwareError(
            f"the probe of {budget.device} ended with status {status}: {last}",
            "`bayard doctor` checks the installation; shipped rates are used until then.",
        )
    return rates_from_probe(json.loads(printed.splitlines()[-1]), budget)


def _run(command: list[str], device: str, limit_s: float, cancelled: Callable[[], bool]) -> tuple[int, str, str]:
    """(exit status, standard output, standard error); the process is gone in any case."""
    limit_mono = time.monotonic() + limit_s
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as probe:
        try:
            while True:
                try:
                    printed, complaints = probe.communicate(timeout=_LOOK_S)
                    return probe.returncode, printed, complaints
                except subprocess.TimeoutExpired:
                    if cancelled():
                        raise Conflict(f"cancelled while measuring {device}.", "Nothing was kept.") from None
                    if time.monotonic() > limit_mono:
                        raise HardwareError(
                            f"calibrating {device} took more than {limit_s:.0f} s.",
                            "Try again when the machine is idle; shipped rates are used until then.",
                        ) from None
        finally:
            probe.kill()


def rates_from_probe(printed: dict[str, Any], budget: DeviceBudget) -> DeviceRates:
    """Raises: HardwareError when the probe printed something else."""
    try:
        probe = msgspec.convert(printed, Probe)
    except msgspec.ValidationError as error:
        raise HardwareError(f"the probe's answer could not be read: {error}.", "Reinstall Bayard.") from error
    shipped = shipped_rates(budget)
    kinds = {kind: _kind(points) for kind, points in probe.kinds.items() if points}
    detail = f"measured with {probe.threads} threads" if probe.threads else "measured"
    if probe.load_average > _BUSY_LOAD:
        detail += f", while others computed (a load of {probe.load_average:.1f}): calibrate again when it is quiet"
    if probe.left_out:
        detail += f"; not measured for lack of time: {', '.join(probe.left_out)}"
    return DeviceRates(
        device=budget.device,
        name=budget.name,
        read_bytes_per_s=probe.read_bytes_per_s,
        flops=max((rate.flops for rate in kinds.values()), default=shipped.flops),
        attention_flops=probe.attention_flops,
        step_overhead_s=shipped.step_overhead_s if probe.step_overhead_s is None else probe.step_overhead_s,
        layer_overhead_s=probe.layer_overhead_s,
        experts_overhead_s=probe.experts_overhead_s,
        kinds=kinds,
        source=MEASURED,
        detail=detail,
        kv_read_bytes_per_s=probe.kv_read_bytes_per_s,
        links=probe.links,
    )


def _kind(points: list[tuple[int, float]]) -> KindRate:
    """Stored bytes are not known here: the rates in weights a second stand in, and the points are what is used."""
    rows, seconds = points[-1]
    return KindRate(read_bytes_per_s=1.0 / points[0][1], flops=2.0 * rows / seconds, points=tuple(points))
