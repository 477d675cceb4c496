"""Free memory is min(live free, control group, setting) less reserve and claims."""

from __future__ import annotations

from dataclasses import replace

from daemon.planning.budget import Claim
from daemon.planning.install import EngineInstall
from daemon.planning.machine_budgets import budgets_of
from hwdetect.accelerator import DeviceProcess, State, Vendor
from tests.fakes.planned_models import GIB, cpu_machine, gpu, gpu_machine

FULL = EngineInstall.full()
CPU_ONLY = EngineInstall(frozenset({"cpu"}))


def test_cpu_takes_the_smallest_limit_and_says_which() -> None:
    (live,) = budgets_of(cpu_machine(24, available_gib=8), FULL)
    assert live.limited_by == "the host memory that is free now"
    assert live.usable_bytes == 8 * GIB - live.reserve_bytes
    (group,) = budgets_of(cpu_machine(24, available_gib=8, cgroup_gib=4), FULL)
    assert group.limited_by == "the control group's limit"
    setting = cpu_machine(24)
    (limited,) = budgets_of(replace(setting, memory=replace(setting.memory, setting_bytes=2 * GIB)), FULL)
    assert limited.limited_by == "the operator's setting"


def test_idle_leaves_what_is_free_now_out_of_account() -> None:
    (idle,) = budgets_of(cpu_machine(24, available_gib=8), FULL, idle=True)
    assert idle.usable_bytes == 24 * GIB - idle.reserve_bytes


def test_own_workers_memory_counts_as_free_and_claims_do_not() -> None:
    machine = cpu_machine(24, available_gib=8)
    (plain,) = budgets_of(machine, FULL)
    (returned,) = budgets_of(machine, FULL, returned_bytes={"cpu": 2 * GIB})
    (claimed,) = budgets_of(machine, FULL, {"cpu": [Claim("other", 3 * GIB)]})
    assert returned.usable_bytes == plain.usable_bytes + 2 * GIB
    assert claimed.usable_bytes == plain.usable_bytes - 3 * GIB


def test_usable_never_falls_below_zero() -> None:
    (budget,) = budgets_of(cpu_machine(24), FULL, {"cpu": [Claim("other", 30 * GIB)]})
    assert budget.usable_bytes == 0


def test_gpu_with_foreign_process_names_it_and_leaves_its_own_out() -> None:
    mine, theirs = DeviceProcess(1, "ours", 5 * GIB), DeviceProcess(2, "train.py", 20 * GIB)
    machine = gpu_machine(gpu("NVIDIA H200", 140, free_gib=115, processes=(mine, theirs)))
    card, _ = budgets_of(machine, FULL, own_pids=frozenset({1}))
    assert card.holders == ("train.py 2 (20.0 GiB)",)
    assert card.limited_by == "the device memory that is free now"
    assert card.unusable is None


def test_what_cannot_be_used_says_why() -> None:
    machine = gpu_machine(
        gpu("NVIDIA H200", 140),
        gpu("910B3", 64, vendor=Vendor.ASCEND),
        gpu("NVIDIA H200", 140, state=State.LOST, reason="it fell off the bus"),
    )
    good, ascend, lost, cpu = budgets_of(machine, FULL)
    assert good.unusable is None
    assert cpu.unusable is None
    assert "ascend" in (ascend.unusable or "")
    assert "fell off the bus" in (lost.unusable or "")
    assert [b.usable_bytes for b in (ascend, lost)] == [0, 0]
    assert [b.device for b in (good, lost)] == ["cuda:0", "cuda:2"]
    without, *_ = budgets_of(machine, CPU_ONLY)
    assert without.unusable == "the installed torch is built without cuda"


def test_this_installation_runs_on_the_cpu_at_least() -> None:
    assert "cpu" in EngineInstall.here().device_types
