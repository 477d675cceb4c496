"""A cache of bytes in plans: where it is offered, what it is said to cost, and that exact ones are preferred."""

from __future__ import annotations

from dataclasses import replace

import pytest

from daemon.planning.install import EngineInstall
from daemon.planning.kv_bytes import element_bytes, kv_bytes_per_token
from daemon.planning.kv_precision import offered_kv
from daemon.planning.machine_budgets import budgets_of
from daemon.planning.plan import Planner, Request
from daemon.planning.strategy import Strategy
from daemon.planning.worker_config import worker_config
from engine.kv.layout import solve_layout
from tests.fakes.planned_models import cpu_machine, gpu, gpu_machine
from tests.fakes.public_models import public_models

MODELS = public_models()
H200 = budgets_of(gpu_machine(gpu("NVIDIA H200", 140.4)), EngineInstall.full(), idle=True)


@pytest.mark.parametrize(("kv_dtype", "element"), [("bfloat16", 2), ("int8", 1), ("fp8", 1)])
def test_bytes_of_a_token_are_those_of_the_pages_laid_out(kv_dtype: str, element: int) -> None:
    spec = MODELS["llama-3.1-8b"]
    layout = solve_layout(spec, bytes_per_element=element, page_tokens=16)
    page_bytes = sum(group.small_page_elements for group in layout.groups) * element
    assert kv_bytes_per_token(spec, kv_dtype) * 16 == page_bytes


def test_bytes_are_offered_where_kernels_read_them_and_to_those_who_do_not_insist_on_exact_numbers() -> None:
    spec = MODELS["llama-3.1-8b"]
    device = next(budget for budget in H200 if not budget.on_cpu)
    host = budgets_of(cpu_machine(64, cores=16), EngineInstall.full(), idle=True)[0]
    assert offered_kv(spec, device, Strategy.THROUGHPUT, None) == ("bfloat16", "int8")
    assert offered_kv(spec, device, Strategy.THROUGHPUT, "fp8") == ("fp8",)
    assert offered_kv(spec, host, Strategy.THROUGHPUT, None) == ("float16",)
    exact = next(strategy for strategy in Strategy if len(offered_kv(spec, device, strategy, None)) == 1)
    assert offered_kv(spec, host, exact, None) == ("float32",)
    bare = replace(device, capabilities=device.capabilities - {"triton"})
    assert offered_kv(spec, bare, Strategy.THROUGHPUT, None) == ("bfloat16",)


def test_a_plan_with_bytes_holds_more_tokens_and_tells_the_worker() -> None:
    spec = MODELS["llama-3.1-8b"]
    asked = Request(Strategy.THROUGHPUT, context_tokens=32768, device="cuda:0")
    exact = Planner(H200).answer(spec, asked).chosen
    coded = Planner(H200).answer(spec, replace(asked, kv_dtype="int8")).chosen
    assert exact is not None
    assert coded is not None
    assert exact.kv_dtype == "bfloat16"
    assert coded.memory.kv_bytes_per_token < 0.52 * exact.memory.kv_bytes_per_token
    assert element_bytes(spec, "int8") == pytest.approx(1 + 4 / 128)
    assert worker_config(coded).kv_dtype == "int8"
