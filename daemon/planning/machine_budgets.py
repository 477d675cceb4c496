"""Budgets of a machine's devices, from what hwdetect says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from daemon.planning.budget import Claim, DeviceBudget
from daemon.planning.install import EngineInstall
from daemon.planning.profile import Profile
from daemon.planning.units import human_bytes
from hwdetect.machine import Accelerator, Machine

# Host memory left alone: the system, the daemon and the page cache of a mapped checkpoint's headers.
_HOST_RESERVE_SHARE = 0.05
_HOST_RESERVE_MIN_BYTES = 512 << 20
_DEVICE_RESERVE_SHARE = 0.02
_DEVICE_RESERVE_MIN_BYTES = 256 << 20


def budgets_of(
    machine: Machine,
    install: EngineInstall,
    claims: Mapping[str, Sequence[Claim]] | None = None,
    own_pids: frozenset[int] = frozenset(),
    idle: bool = False,
    returned_bytes: Mapping[str, int] | None = None,
    drained: Mapping[str, str] | None = None,
) -> tuple[DeviceBudget, ...]:
    """One budget a device, accelerators first; devices that cannot be used carry the reason.

    idle: plan for the machine as it will be when its present loads have ended (what a saved description is for).
    returned_bytes: by device, what Bayard's own workers hold now and a new plan would give back.
    drained: devices that an operator has taken out of use, and why.
    """
    claims = claims or {}
    returned = returned_bytes or {}
    budgets = []
    for accelerator, device in zip(machine.accelerators, device_names(machine, install), strict=True):
        own = () if idle else (returned.get(device, 0),)
        budgets.append(_accelerator(accelerator, device, install, tuple(claims.get(device, ())), own_pids, own))
    budgets.append(_cpu(machine, tuple(claims.get("cpu", ())), () if idle else (returned.get("cpu", 0),)))
    out = drained or {}
    return tuple(
        replace(budget, unusable=f"it is drained: {out[budget.device]}") if budget.device in out else budget
        for budget in budgets
    )


def device_names(machine: Machine, install: EngineInstall) -> list[str]:
    """How a worker's configuration names each accelerator, in their order: "cuda:0"."""
    numbers: dict[str, int] = {}
    names = []
    for accelerator in machine.accelerators:
        kind = install.device_type(accelerator) or accelerator.vendor.value
        number = numbers.get(kind, 0)
        numbers[kind] = number + 1
        names.append(f"{kind}:{accelerator.index if accelerator.index is not None else number}")
    return names


def claims_of(beside: Sequence[Profile]) -> dict[str, list[Claim]]:
    """By device, what profiles that run at the same time will take."""
    claims: dict[str, list[Claim]] = {}
    for profile in beside:
        claims.setdefault(profile.device, []).append(Claim(profile.model, profile.memory.total_bytes))
    return claims


def _cpu(machine: Machine, claims: tuple[Claim, ...], live: tuple[int, ...]) -> DeviceBudget:
    """live: () to leave what is free now out of account, else the bytes to add to it."""
    memory = machine.memory
    limits: list[tuple[str, int]] = []
    if memory.total_bytes is not None:
        limits.append(("the host's memory", memory.total_bytes))
    if memory.cgroup_limit_bytes is not None:
        limits.append(("the control group's limit", memory.cgroup_limit_bytes))
    if memory.memory_set_bytes is not None:
        limits.append(("the memory set", memory.memory_set_bytes))
    if memory.setting_bytes is not None:
        limits.append(("the operator's setting", memory.setting_bytes))
    if live and memory.available_bytes is not None:
        limits.append(("the host memory that is free now", memory.available_bytes + live[0]))
    total = memory.effective_limit_bytes
    reserve = max(_HOST_RESERVE_MIN_BYTES, int((total or 0) * _HOST_RESERVE_SHARE))
    return DeviceBudget(
        device="cpu",
        name=machine.cpu.model or machine.cpu.architecture or "CPU",
        total_bytes=memory.total_bytes,
        limits=tuple(limits),
        reserve_bytes=reserve,
        claims=claims,
        cores=machine.cpu.usable_cores,
        capabilities=frozenset(machine.cpu.isa_levels),
        unusable=None if limits else "the host's memory could not be read",
    )


def _accelerator(
    accelerator: Accelerator,
    device: str,
    install: EngineInstall,
    claims: tuple[Claim, ...],
    own_pids: frozenset[int],
    live: tuple[int, ...],
) -> DeviceBudget:
    limits: list[tuple[str, int]] = []
    if accelerator.memory_total_bytes is not None:
        usable = max(0, accelerator.memory_total_bytes - (accelerator.memory_reserved_bytes or 0))
        limits.append(("the device's memory", usable))
    if live and accelerator.available_bytes is not None:
        limits.append(("the device memory that is free now", accelerator.available_bytes + live[0]))
    holders = []
    for process in accelerator.processes or ():
        if process.pid not in own_pids:
            size = f" ({human_bytes(process.memory_bytes)})" if process.memory_bytes is not None else ""
            holders.append(f"{process.name or 'process'} {process.pid}{size}")
    refusal = install.refusal(accelerator)
    if refusal is None and not accelerator.usable:
        reason = accelerator.reason or "it is not in working order"
        refusal = f"{reason} ({accelerator.state.value})"
    if refusal is None and not limits:
        refusal = "its memory could not be read"
    capabilities = accelerator.capabilities
    offered = () if capabilities is None else ("bf16", "fp8", "fp4", "int8", "triton", "graphs")
    return DeviceBudget(
        device=device,
        name=accelerator.name or f"{accelerator.vendor.value} device",
        total_bytes=accelerator.memory_total_bytes,
        limits=tuple(limits),
        reserve_bytes=max(
            _DEVICE_RESERVE_MIN_BYTES, int((accelerator.memory_total_bytes or 0) * _DEVICE_RESERVE_SHARE)
        ),
        claims=claims,
        capabilities=frozenset(name for name in offered if getattr(capabilities, name)),
        holders=tuple(holders),
        unusable=refusal,
    )
