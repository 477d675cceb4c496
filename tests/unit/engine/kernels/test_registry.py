"""Choosing kernels: priority, reasons, and backends that are not there."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from engine.kernels import registry
from engine.kernels.registry import OPS, Implementation, OpQuery, explain, implementations, select, why

QUERY = OpQuery("cpu", "float32", weight_kind="Q4_K")


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[Implementation]]]:
    """A registry whose backends are the modules put in the dictionary; anything else is not installed."""
    modules: dict[str, list[Implementation]] = {}

    def find(name: str) -> object | None:
        return object() if name in modules else None

    def load(name: str) -> Any:
        if name not in modules:
            return importlib.import_module(name)
        return SimpleNamespace(implementations=lambda: modules[name])

    monkeypatch.setattr(
        registry, "importlib", SimpleNamespace(util=SimpleNamespace(find_spec=find), import_module=load)
    )
    monkeypatch.setattr(registry, "BACKENDS", ("plain", "fast"))
    registry._loaded.cache_clear()
    yield modules
    registry._loaded.cache_clear()


def made(name: str, priority: int, reason: str | None = None, op: str = "linear") -> Implementation:
    return Implementation(op, name, priority, lambda query: reason, lambda: None, detail=f"{name} detail")


def test_reference_serves_every_op_and_any_query() -> None:
    odd = OpQuery("npu", "bfloat16", weight_kind="Q9_Z", head_dim=7)
    for op in OPS:
        assert any(choice.name == "reference" and choice.reason is None for choice in explain(op, odd))


def test_weight_ops_pack_and_others_do_not() -> None:
    for op in OPS:
        for impl in implementations(op):
            assert (impl.pack is not None) == (op in ("linear", "embedding", "experts")), impl


def test_select_prefers_priority_among_usable(backends: dict[str, list[Implementation]]) -> None:
    backends["plain"] = [made("reference", 0)]
    backends["fast"] = [made("best", 30, "needs AVX-512"), made("good", 20), made("worse", 10)]
    assert select("linear", QUERY).name == "good"
    assert [(c.name, c.reason) for c in explain("linear", QUERY)] == [
        ("best", "needs AVX-512"),
        ("good", None),
        ("worse", None),
        ("reference", None),
    ]
    assert why("linear", QUERY) == "good (good detail); not best: needs AVX-512"


def test_deferred_function_is_imported_by_the_choice_alone(backends: dict[str, list[Implementation]]) -> None:
    backends["plain"] = [made("reference", 0)]
    absent, present = registry.Deferred("no_such_module", "f"), registry.Deferred("math", "sqrt")
    backends["fast"] = [
        Implementation("linear", "unusable", 20, lambda query: "needs a GPU", absent),
        Implementation("linear", "usable", 10, lambda query: None, present),
    ]
    chosen = select("linear", QUERY)
    assert chosen.run is math.sqrt
    assert present(4.0) == 2.0


def test_choosing_for_the_cpu_never_imports_the_triton_compiler() -> None:
    code = (
        "import sys; from engine.kernels.registry import OPS, OpQuery, explain, select\n"
        "for op in OPS: select(op, OpQuery('cpu', 'float32', 'F32')), explain(op, OpQuery('cpu', 'float32', 'F32'))\n"
        "assert 'triton' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_absent_backend_is_a_reason_not_an_error(backends: dict[str, list[Implementation]]) -> None:
    backends["plain"] = [made("reference", 0)]
    assert select("linear", QUERY).name == "reference"
    assert registry.absent_backends() == {"fast": "fast is not part of this installation"}


def test_select_without_usable_implementation_says_so(backends: dict[str, list[Implementation]]) -> None:
    backends["plain"] = [made("only", 0, "never")]
    with pytest.raises(LookupError, match="no implementation of linear"):
        select("linear", QUERY)


@pytest.mark.parametrize(
    ("second", "message"),
    [(made("reference", 5), "two implementations"), (made("x", 5, op="conv"), "unknown op 'conv'")],
)
def test_backend_with_repeated_name_or_unknown_op_is_refused(
    second: Implementation, message: str, backends: dict[str, list[Implementation]]
) -> None:
    backends["plain"] = [made("reference", 0)]
    backends["fast"] = [second]
    with pytest.raises(LookupError, match=message):
        implementations("linear")
