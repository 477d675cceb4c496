"""Shipped rates: what a device does by its datasheet, used until this machine has been measured.

Rows are vendors' published peaks (dense, without sparsity). The habitual share of a peak that kernels reach is
applied once, here, so that a prediction made from a row is marked "shipped" and is near what runs really give.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from daemon.planning.budget import DeviceBudget
from daemon.planning.rates import SHIPPED, DeviceRates, KindRate

_READ_SHARE = 0.80
_MATMUL_SHARE = 0.65


@dataclass(frozen=True, slots=True)
class Datasheet:
    pattern: str  # of the name that the driver reports
    read_gb_s: float
    bf16_tflops: float
    fp8_tflops: float | None = None


_SHEETS = (
    Datasheet(r"\bB200\b", 8000, 2250, 4500),
    Datasheet(r"\bH200\b", 4800, 989, 1979),
    Datasheet(r"\bH20\b", 4000, 148, 296),
    Datasheet(r"\bH100\b.*PCIe", 2000, 756, 1513),
    Datasheet(r"\b(H100|H800)\b", 3350, 989, 1979),
    Datasheet(r"\b(A100|A800)\b", 2039, 312),
    Datasheet(r"\bL40S?\b", 864, 362, 733),
    Datasheet(r"\bL20\b", 864, 119, 239),
    Datasheet(r"\bL4\b", 300, 121, 242),
    Datasheet(r"\bA10\b", 600, 125),
    Datasheet(r"\bGB10\b", 273, 125, 250),
    Datasheet(r"RTX 5090", 1792, 209, 419),
    Datasheet(r"RTX 4090", 1008, 165, 330),
    Datasheet(r"RTX 3090", 936, 71),
    Datasheet(r"910B[1-4]?", 1600, 313),
    Datasheet(r"\b910C?\b", 1200, 256),
    Datasheet(r"310P", 204, 70),
    Datasheet(r"MI300X", 5300, 1307, 2614),
    Datasheet(r"MI308X", 5300, 188, 376),
    Datasheet(r"S4000", 768, 200),
)

# One core with the widest unit named, in float32: what a well-kept matrix product reaches.
_CORE_GFLOPS = (("amx", 150.0), ("avx512", 70.0), ("avx2", 40.0), ("neon", 25.0))
_SCALAR_CORE_GFLOPS = 4.0
_CORE_READ_GB_S = 9.0
_SOCKET_READ_GB_S = 200.0


def shipped_rates(budget: DeviceBudget) -> DeviceRates:
    """Rates of a device that nobody has measured yet."""
    return _cpu_rates(budget) if budget.on_cpu else _accelerator_rates(budget)


def _cpu_rates(budget: DeviceBudget) -> DeviceRates:
    cores = max(1, budget.cores)
    per_core, unit = _SCALAR_CORE_GFLOPS, "no vector unit known"
    for prefix, gflops in _CORE_GFLOPS:
        if any(capability.startswith(prefix) for capability in budget.capabilities):
            per_core, unit = gflops, prefix
            break
    flops = cores * per_core * 1e9
    return DeviceRates(
        device="cpu",
        name=budget.name,
        read_bytes_per_s=min(cores * _CORE_READ_GB_S, _SOCKET_READ_GB_S) * 1e9,
        flops=flops,
        attention_flops=flops / 8,
        step_overhead_s=1.0e-3,
        layer_overhead_s=1.2e-4,
        source=SHIPPED,
        detail=f"typical of {cores} cores with {unit}",
    )


def _accelerator_rates(budget: DeviceBudget) -> DeviceRates:
    sheet = next((s for s in _SHEETS if re.search(s.pattern, budget.name, re.IGNORECASE)), None)
    if sheet is None:
        # A device we know nothing of: the slowest of the table, so that nothing is promised.
        sheet = Datasheet("", 200, 50)
        detail = "no datasheet row for this name: the slowest class is assumed"
    else:
        detail = f"datasheet: {sheet.read_gb_s:,.0f} GB/s, {sheet.bf16_tflops:,.0f} TFLOP/s in 16 bit"
    read = sheet.read_gb_s * 1e9 * _READ_SHARE
    flops = sheet.bf16_tflops * 1e12 * _MATMUL_SHARE
    kinds = {}
    if sheet.fp8_tflops is not None and "fp8" in budget.capabilities:
        kinds = {kind: KindRate(read, sheet.fp8_tflops * 1e12 * _MATMUL_SHARE) for kind in ("F8_E4M3", "fp8")}
    return DeviceRates(
        device=budget.device,
        name=budget.name,
        read_bytes_per_s=read,
        flops=flops,
        attention_flops=flops / 2,
        step_overhead_s=3.0e-4,
        layer_overhead_s=8.0e-6,
        experts_overhead_s=2.0e-5,
        kinds=kinds,
        source=SHIPPED,
        detail=detail,
    )
