"""The page's section on quantised kernels; a part of bench.report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from engine.errors import ConfigError

Line = dict[str, Any]
Rows = list[list[str]]

KINDS = {
    "fp8_128": "fp8 (groups of 128)",
    "fp8_blocks": "fp8 (blocks of 128)",
    "fp4_nv": "fp4 (NVFP4)",
    "fp4_mx": "fp4 (MXFP4)",
}
NOT_SHOWN = ("refused",)  # tiles that did not fit the device, of a sweep


def kernel_tables(lines: Iterable[Line]) -> list[tuple[str, list[str], Rows]]:
    """(what, heads, rows) of each table. Raises: ConfigError for a figure that is not known."""
    found: dict[str, Rows] = {name: [] for name in TABLES}
    for line in lines:
        name = line.get("fig")
        if name in NOT_SHOWN:
            continue
        if name not in TABLES:
            raise ConfigError(f"The result of kernels holds an unknown figure {name!r}.", "Update bench/report.")
        found[name].append(TABLES[name][2](line))
    return [(what, heads, found[name]) for name, (what, heads, _) in TABLES.items() if found[name]]


def _step(line: Line) -> list[str]:
    return [_kind(line), str(line["rows"]), f"{line['matrices_ms']:.2f} ms", _times(line["over_bf16"])]


def _gemv(line: Line) -> list[str]:
    took = f"{line['us']:.1f} µs"
    return [_kind(line), line["matrix"], str(line["rows"]), took, f"{line['of_copy']:.0%}", _times(line["over_bf16"])]


def _tiles(line: Line) -> list[str]:
    return [_kind(line), line["matrix"], str(line["rows"]), f"{line['us']:.1f} µs", _times(line["over_bf16"])]


def _large(line: Line) -> list[str]:
    whole = line["us"] / line["whole_us"]
    took = f"{line['us']:,.1f} µs"
    return [_kind(line), line["matrix"], f"{line['rows']:,}", took, _times(1 / line["of_bf16"]), f"{whole:.2f}"]


def _native(line: Line) -> list[str]:
    rate = f"{line['tops']:,} T/s" if line.get("tops") is not None else ""
    took = f"{line['us']:,.1f} µs"
    return [_kind(line), line["matrix"], f"{line['rows']:,}", took, rate, _times(line["over_bf16"])]


def _mixed(line: Line) -> list[str]:
    error = f"{line['error']:.4f} ({line['int8_error'] / line['error']:.1f}× less than int8)"
    return [
        f"{line['rows']:,} × {line['depth']:,} × {line['columns']:,}",
        str(line["outliers"]),
        f"{line['us']:,.1f} µs",
        _times(line["over_bf16"]),
        f"{line['of_int8']:.0%}",
        _times(line["over_naive"]),
        _times(line["over_awq"]),
        error,
    ]


def _experts(line: Line) -> list[str]:
    reached = f"{line['bound_us'] / line['us']:.0%}"
    bound = f"{line['bound_us']:,.0f} µs"
    return [f"{line['tokens']:,}", str(line["chosen"]), f"{line['us']:,.0f} µs", bound, reached, f"{line['error']:.4f}"]


def _sampling(line: Line) -> list[str]:
    return [line["what"], str(line["rows"]), f"{line['us']:.0f} µs", f"{line['bytes_us']:.0f} µs"]


def _kind(line: Line) -> str:
    kind = str(line["kind"])
    return KINDS.get(kind, kind)


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}×"


TABLES: dict[str, tuple[str, list[str], Callable[[Line], list[str]]]] = {
    "step": (
        "All matrices of a Llama-8B step, weights read once",
        ["weights", "rows", "time", "of bf16's speed"],
        _step,
    ),
    "gemv": (
        "Each of them; the share is of a plain copy's bytes a second",
        ["weights", "matrix", "rows", "time", "share", "of bf16's speed"],
        _gemv,
    ),
    "tiles": ("Some rows, decoded in tiles", ["weights", "matrix", "rows", "time", "of bf16's speed"], _tiles),
    "large": (
        "Many rows with exact activations; the last column is the time beside decoding all of the weight first",
        ["weights", "matrix", "rows", "time", "of bf16's speed", "of whole"],
        _large,
    ),
    "native": (
        "Many rows with 8-bit activations, rounding them included",
        ["weights", "matrix", "rows", "time", "product alone", "of bf16's speed"],
        _native,
    ),
    "mixed": (
        "Int8 with outlier columns: M × K × N; beside a decomposition in two products, and four-bit weights decoded in "
        "each tile",
        [
            "shape",
            "outliers",
            "time",
            "of bf16's speed",
            "of plain int8's",
            "of the decomposition's",
            "of tiles'",
            "error",
        ],
        _mixed,
    ),
    "experts": (
        "The experts of a layer of Qwen3-30B-A3B; what bounds is the chosen ones' bytes or the operations",
        ["tokens", "experts chosen", "time", "bound", "reached", "error"],
        _experts,
    ),
    "sampling": (
        "Choosing a batch's tokens, the largest logits included; beside what reading 128,256 logits a row once takes",
        ["what is asked for", "rows", "time", "bytes alone"],
        _sampling,
    ),
}
