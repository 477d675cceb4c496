"""The host as a device: its memory and cores as its control groups leave them."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.devices import cpu, open_device
from engine.errors import DeviceUnusable


def test_own_cgroups_go_from_the_root_to_this_process(tmp_path: Path):
    member = tmp_path / "cgroup"
    member.write_text("0::/system.slice/bayard.service\n")
    assert cpu.own_cgroups("/cg", str(member)) == ["/cg", "/cg/system.slice", "/cg/system.slice/bayard.service"]
    member.write_text("12:memory:/x\n0::/\n")
    assert cpu.own_cgroups("/cg", str(member)) == ["/cg"]
    assert cpu.own_cgroups("/cg", str(tmp_path / "none")) == ["/cg"]


def test_limits_of_the_unit_and_of_its_slice_both_hold(tmp_path: Path, monkeypatch):
    unit = tmp_path / "slice" / "unit"
    unit.mkdir(parents=True)
    (tmp_path / "slice" / "memory.max").write_text("5000000\n")
    (tmp_path / "slice" / "memory.current").write_text("1000000\n")
    (unit / "memory.max").write_text("max\n")
    (unit / "memory.current").write_text("900000\n")
    (unit / "cpu.max").write_text("100000 100000\n")
    monkeypatch.setattr(cpu, "own_cgroups", lambda: [str(tmp_path), str(tmp_path / "slice"), str(unit)])
    assert cpu.CpuDevice().free_bytes() == 4_000_000
    assert cpu.usable_cpus() == 1


@pytest.mark.parametrize("name", ["cuda:x", "tpu", "npu:0", ""])
def test_device_that_is_not_here_is_refused_with_a_hint(name):
    with pytest.raises(DeviceUnusable) as refused:
        open_device(name)
    assert refused.value.hint
