"""What kernels may round activations to: asked for by the plan, since the weights' kind alone does not say it."""

from __future__ import annotations

import pytest

from daemon.planning.install import EngineInstall
from daemon.planning.machine_budgets import budgets_of
from daemon.planning.plan import Planner, Request
from daemon.planning.profile import Profile
from daemon.planning.strategy import Strategy
from daemon.planning.worker_config import worker_config
from hwdetect.accelerator import Capabilities
from hwdetect.machine import Machine
from tests.fakes.planned_models import cpu_machine, gpu, gpu_machine
from tests.fakes.public_models import public_models

H200 = gpu_machine(gpu("NVIDIA H200", 140.4), host_gib=512)
NO_FP8 = Capabilities(bf16=True, fp8=False, triton=True, graphs=True)
A800 = gpu_machine(gpu("NVIDIA A800", 80.0, capabilities=NO_FP8), host_gib=512)


def planned(machine: Machine, weights: str | None) -> Profile:
    planner = Planner(budgets_of(machine, EngineInstall.full(), idle=True))
    chosen = planner.answer(public_models()["qwen2.5-14b"], Request(Strategy.BALANCED, weights=weights)).chosen
    assert chosen is not None
    return chosen


@pytest.mark.parametrize(
    ("machine", "weights", "activation"),
    [
        (H200, "fp8", "fp8"),
        (H200, "int8-mixed", "int8"),
        (H200, "int8", "exact"),
        (H200, "int4", "exact"),
        (H200, None, "exact"),
        (A800, "fp8", "exact"),
        (cpu_machine(512, cores=64), "int8-mixed", "exact"),
    ],
    ids=["h200-fp8", "h200-mixed", "h200-int8", "h200-int4", "h200-stored", "a800-fp8", "cpu-mixed"],
)
def test_plan_lets_kernels_round_activations_where_weights_and_device_gain_by_it(
    machine: Machine, weights: str | None, activation: str
) -> None:
    profile = planned(machine, weights)
    assert profile.activation == activation
    assert worker_config(profile).activation == activation
    (why,) = [choice.reason for choice in profile.choices if choice.topic == "weights"]
    assert ("activations of many rows are rounded" in why) == (activation != "exact")
