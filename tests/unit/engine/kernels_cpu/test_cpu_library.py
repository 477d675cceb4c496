"""The library as a whole: its ABI, its instruction sets, its threads, its place in the registry."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time

import pytest
import torch

from engine.errors import ConfigError, InvalidParameter
from engine.kernels import registry
from engine.kernels.cpu import abi, library, ops
from engine.kernels.registry import OpQuery

QUERY = OpQuery(
    device="cpu", dtype="float32", weight_kind="Q4_K", kv_dtype="float16", head_dim=64, down_kind="Q6_K", gate="silu"
)


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", sorted(abi.STRUCTS))
def test_struct_sizes_equal_the_headers(name: str) -> None:
    assert library.load().bayard_struct_bytes(name.encode()) == ctypes.sizeof(abi.STRUCTS[name])


def test_scalar_is_always_there_and_the_best_is_the_default() -> None:
    available = library.available_isas()
    assert available[0] == "scalar"
    library.set_isa("")
    assert library.isa() == available[-1]


@pytest.mark.parametrize("name", ["avx1024", "AVX2", "sse"])
def test_unknown_isa_is_an_error_that_names_the_known(name: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        library.set_isa(name)
    assert "scalar" in caught.value.hint


def test_unavailable_isa_is_an_error() -> None:
    missing = [name for name in library.KNOWN_ISAS if name not in library.available_isas()]
    if not missing:
        pytest.skip("this CPU has every instruction set the library knows")
    with pytest.raises(ConfigError, match="lacks"):
        library.set_isa(missing[0])


def test_isa_variable_forces_a_level_and_a_bad_one_stops_the_start() -> None:
    code = "from engine.kernels.cpu import library; print(library.isa())"
    assert run_python(code, BAYARD_CPU_ISA="scalar").stdout.strip() == "scalar"
    bad = run_python(code, BAYARD_CPU_ISA="avx9")
    assert bad.returncode != 0
    assert "BAYARD_CPU_ISA asks for 'avx9'" in bad.stderr


@pytest.mark.parametrize("op", registry.OPS)
def test_registry_prefers_the_library_or_says_why_not(op: str) -> None:
    choices = {c.name: c.reason for c in registry.explain(op, QUERY)}
    if "cpu" in choices:
        assert choices["cpu"] is None
        assert registry.select(op, QUERY).name == "cpu"


def test_registry_gives_int8_only_to_a_profile_that_asks() -> None:
    wanted = OpQuery(device="cpu", dtype="float32", weight_kind="Q8_0", activation="int8")
    assert registry.select("linear", wanted).name == "cpu-int8"
    plain = OpQuery(device="cpu", dtype="float32", weight_kind="F32", activation="int8")
    assert registry.select("linear", plain).name == "cpu"


@pytest.mark.parametrize(
    ("op", "change", "reason"),
    [
        ("linear", {"device": "cuda"}, "cuda"),
        ("linear", {"weight_kind": "Q2_K"}, "Q2_K"),
        ("rms_norm", {"dtype": "bfloat16"}, "bfloat16"),
        ("paged_attention", {"head_dim": 40}, "multiples of 16"),
        ("paged_attention", {"kv_dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
    ],
)
def test_registry_reason_names_what_is_lacking(op: str, change: dict[str, object], reason: str) -> None:
    from dataclasses import replace

    choices = {c.name: c.reason for c in registry.explain(op, replace(QUERY, **change))}
    assert reason in (choices["cpu"] or "")


def test_threads_negative_or_absurd_is_refused() -> None:
    for count in (-1, 5000):
        with pytest.raises(InvalidParameter, match=str(count)):
            library.set_threads(count)


def test_threads_zero_is_one_a_usable_core() -> None:
    was = library.threads()
    try:
        library.set_threads(0)
        assert library.threads() == library.usable_cores() >= 1
    finally:
        library.set_threads(was)


def test_cpuset_of_one_late_core_gives_one_thread_there_and_equal_bits() -> None:
    last = max(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, {{{last}}})\n"
        "import torch\n"
        "from engine.kernels.cpu import library, ops, weights\n"
        "torch.manual_seed(3)\n"
        "x, w = torch.randn(9, 64), torch.randn(300, 64)\n"
        "out = ops.linear_exact(x, weights.pack(w))\n"
        "one = library.threads()\n"
        "library.set_threads(3)\n"
        "assert ops.linear_exact(x, weights.pack(w)).equal(out)\n"
        "print(one, library.usable_cores(), torch.allclose(out, x @ w.T, atol=1e-4))"
    )
    done = run_python(code)
    assert done.stdout.split() == ["1", "1", "True"], done.stderr


def test_pool_is_idle_when_nothing_runs() -> None:
    code = (
        "import time, torch\n"
        "from engine.kernels.cpu import library, ops, weights\n"
        "library.set_threads(4)\n"
        "packed = weights.pack(torch.randn(2048, 512))\n"
        "x = torch.randn(4, 512)\n"
        "for _ in range(20): ops.linear_exact(x, packed)\n"
        "time.sleep(0.2)\n"
        "before = time.process_time()\n"
        "time.sleep(1.0)\n"
        "print(time.process_time() - before)"
    )
    done = run_python(code)
    assert float(done.stdout) < 0.05, done.stderr


def test_threads_return_after_the_pool_is_replaced_often() -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/task"))

    was = library.threads()
    try:
        library.set_threads(3)
        ops.rms_norm(torch.randn(2, 8), torch.ones(8), 1e-5)
        before = count()
        for threads in (1, 2, 5, 3) * 10:
            library.set_threads(threads)
        deadline = time.monotonic() + 5
        while count() != before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert count() == before
    finally:
        library.set_threads(was)


def test_calls_from_many_threads_at_once_give_the_same_bits() -> None:
    from concurrent.futures import ThreadPoolExecutor

    from engine.kernels.cpu import weights

    packed = weights.pack(torch.randn(200, 128))
    inputs = [torch.randn(1 + i % 7, 128) for i in range(40)]
    alone = [ops.linear_exact(x, packed) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda x: ops.linear_exact(x, packed), inputs))
    assert all(a.equal(b) for a, b in zip(alone, together, strict=True))
