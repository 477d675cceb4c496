"""Calibration: the engine's probe in a process of its own, and what is made of its answer."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import pairwise

import pytest

from daemon.planning import calibrate
from daemon.planning.calibrate import measure, rates_from_probe
from daemon.planning.datasheet import shipped_rates
from daemon.planning.install import EngineInstall
from daemon.planning.machine_budgets import budgets_of
from daemon.planning.rates import MEASURED, SHIPPED, DeviceRates
from engine.errors import Conflict, HardwareError
from tests.fakes.planned_models import cpu_machine, gpu, gpu_machine

(CPU,) = budgets_of(cpu_machine(16), EngineInstall.full())
ANSWER = {
    "device": "cpu",
    "threads": 2,
    "dtype": "float32",
    "read_bytes_per_s": 2e10,
    "kv_read_bytes_per_s": 1e10,
    "attention_flops": 5e10,
    "layer_overhead_s": 5e-5,
    "step_overhead_s": 3e-5,
    "links": {"to_device": 5e10, "to_host": 4.5e10, "peer": None},
    "experts_overhead_s": 2e-5,
    "kinds": {"Q4_K": [[1, 1e-10], [16, 2e-10]], "F32": []},
    "kernels": {"Q4_K": "cpu (avx2)"},
    "left_out": ["F32"],
}


def test_probe_really_measures_this_machine() -> None:
    began = time.monotonic()
    rates = measure(CPU, 2, 4.0, ["Q4_1"])
    assert time.monotonic() - began < 4.0 + 45
    assert rates.source == MEASURED
    assert 1e8 < rates.read_bytes_per_s < 2e12
    assert 1e8 < rates.flops < 1e14
    points = rates.kinds["Q4_1"].points
    assert [rows for rows, _ in points] == [1, 4, 16, 64, 256]
    assert all(low[1] <= high[1] for low, high in pairwise(points))
    assert DeviceRates.from_json(rates.to_json()) == rates


def test_answer_becomes_rates_and_says_what_was_left_out() -> None:
    rates = rates_from_probe(ANSWER, CPU)
    assert rates.kinds.keys() == {"Q4_K"}
    assert rates.kinds["Q4_K"].seconds(0, 1e6, 1) == pytest.approx(1e-4)
    assert rates.flops == pytest.approx(2 * 16 / 2e-10)
    assert "F32" in rates.detail
    assert rates.step_overhead_s == 3e-5
    assert str(rates.links) == "50.0 GB/s from the host, 45.0 back"
    busy = rates_from_probe({**ANSWER, "load_average": 1.6}, CPU)
    assert "a load of 1.6" in busy.detail
    unmeasured = rates_from_probe({**ANSWER, "step_overhead_s": None}, CPU)
    assert unmeasured.step_overhead_s == shipped_rates(CPU).step_overhead_s


@pytest.mark.parametrize("change", [{"threads": "two"}, {"surprise": 1}])
def test_answer_of_another_form_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(HardwareError, match="could not be read"):
        rates_from_probe({**ANSWER, **change}, CPU)


def test_probe_that_fails_gives_its_last_line() -> None:
    with pytest.raises(HardwareError, match="unknown weight kind"):
        measure(CPU, 1, 1.0, ["Q9_Z"])


def test_probe_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "_START_ALLOWANCE_S", 0.01)
    with pytest.raises(HardwareError, match="took more than"):
        measure(CPU, 1, 0.01)


def test_probe_that_is_cancelled_is_ended_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(Conflict, match="cancelled while measuring cpu"):
        measure(CPU, 1, 60.0, cancelled=lambda: True)
    assert time.monotonic() - began < 10


def test_shipped_rates_follow_cores_vector_units_and_datasheets() -> None:
    (wide,) = budgets_of(cpu_machine(16, cores=16), EngineInstall.full())
    assert shipped_rates(wide).flops > shipped_rates(CPU).flops
    card, unknown, _ = budgets_of(gpu_machine(gpu("NVIDIA H200", 140), gpu("NVIDIA Whatever", 8)), EngineInstall.full())
    h200, other = shipped_rates(card), shipped_rates(unknown)
    assert h200.source == other.source == SHIPPED
    assert h200.kinds["F8_E4M3"].flops > h200.flops
    assert "datasheet" in h200.detail
    assert "no datasheet row" in other.detail
    assert other.read_bytes_per_s < h200.read_bytes_per_s


def test_daemon_side_loads_no_torch() -> None:
    program = (
        "import sys, daemon.strategy.parts, daemon.strategy.controller, daemon.planning.calibrate;"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
