"""The registry: an op's implementations, what each requires, and which one a query gets.

A backend is a module named in BACKENDS with a function `implementations() -> Iterable[Implementation]`. It must
import anywhere: what it lacks (a library not built, a package not installed) is a reason its `requires` gives, never an
ImportError. The best by priority whose `requires` gives None is chosen; `reference` has priority 0 and takes all.

    op               run(...)
    linear           (x [M, K], packed, bias | None) -> [M, N] in x's dtype
                     pack(QuantTensor | Tensor [N, K]) -> packed
    embedding        (token_ids [T], packed, dtype) -> [T, K]
                     pack(QuantTensor | Tensor [V, K]) -> packed
    rms_norm         (x [..., K], weight [K], eps) -> like x
    add_rms_norm     (x [T, K], residual [T, K], weight [K], eps) -> (normed, new residual)
    rope             (q [T, H, D], k [T, G, D], positions [T], cos_sin [P, R]) -> None           mutates q and k
    silu_mul         (gate_up [M, 2I]) -> [M, I]
    gelu_mul         (gate_up [M, 2I]) -> [M, I]
    route            (logits [T, E], count, score, normalise, scale, correction | None, groups, groups_kept, group_top)
                     -> (ids [T, A] int32, weights [T, A] float32)
    experts          (x [T, K], ids, weights, gate_up, down, gate_up_bias | None, down_bias | None, activation)
                     -> [T, K]; pack(ExpertStack) -> packed, of gate_up and of down
    kv_write         (k [T, G, D], v, view, write_pages [T], write_offsets [T], kv_scales [2, G] | None) -> None
                                                                                                mutates view
    rope_kv_write    (q, k, v, positions, cos_sin, view, write_pages, write_offsets, q_norm | None, k_norm | None, eps,
                      kv_scales | None) -> None                                              mutates q, k and view
    prompt_attention (q [T, H, D], k [T, G, D], v, scale) -> [T, H, D], a whole prompt without pages
    pick_greedy      (logits [R, vocab]) -> [R] int32, -1 where a row is not finite
    choose_tokens    (logits [R, vocab], rows [r], settings [r, 8], counts [C, vocab], count_rows [r]) -> [r] int32
                                                                                                 mutates logits
    draw_tokens      (logits [R, vocab], picked [R], counts [C, vocab], asked) -> [r, 1 + 2 * most] int32 | None
                                                                             mutates picked, counts, logits
    newest_tokens    (token_ids [T], slots [T], pool [P]) -> [T]
    keep_tokens      (pool [P], slots [S], tokens [S]) -> None                                   mutates pool
    paged_attention  (q [T, H, D], view, block_tables, query_starts, context_lens, scale,
                      window_tokens | None, softcap | None, sinks | None) -> [T, H, D]

    latent_write     (rows [T, C], view, write_pages, write_offsets) -> None                     mutates view
    paged_latent_attention  (q [T, H, C], view, block_tables, query_starts, context_lens, scale, latent_dim)
                     -> [T, H, latent_dim]

What the arguments mean is said at the function of the same name in reference.py, which is the truth of each op.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

OPS = (
    "linear",
    "embedding",
    "rms_norm",
    "add_rms_norm",
    "rope",
    "silu_mul",
    "gelu_mul",
    "route",
    "experts",
    "kv_write",
    "rope_kv_write",
    "pick_greedy",
    "choose_tokens",
    "draw_tokens",
    "newest_tokens",
    "keep_tokens",
    "paged_attention",
    "latent_write",
    "paged_latent_attention",
    "prompt_attention",
)
BACKENDS = (
    "engine.kernels.reference",
    "engine.kernels.cpu.backend",
    "engine.kernels.sdpa",
    "engine.kernels.triton.backend",
)


@dataclass(frozen=True, slots=True)
class OpQuery:
    """What is known when an implementation is chosen, at load. Unset fields: the op has no such thing."""

    device: str  # torch device type: "cpu", "cuda", "npu", ...
    dtype: str  # activations: "float32", "bfloat16", "float16"
    # linear, embedding, experts' gate_up: "Q4_K", "F32", ... (engine.ggml_types names, for plain tensors too)
    weight_kind: str = ""
    down_kind: str = ""  # experts: the same of down
    num_experts: int = 0  # experts
    gate: str = ""  # experts: the gate's function, "silu", "gelu_tanh", "swiglu_clamped"
    kv_dtype: str = ""  # kv_write and paged_attention
    head_dim: int = 0  # rope, kv_write and paged_attention
    activation: str = "exact"  # linear: "exact" keeps activations as they are, "int8" lets a kernel quantise them
    capabilities: frozenset[str] = frozenset()  # of the device: "bf16", "fp8", "triton", "graphs", ...


@dataclass(frozen=True, slots=True)
class CodedInput:
    """How a linear takes inputs that the op before wrote as codes. Codes are opaque, and of one linear alone."""

    wants: Callable[[int, Any], bool]  # (rows, packed): whether codes serve so many rows
    norm: Callable[..., tuple[Any, Any]]  # (x, residual | None, weight, eps, packed) -> (codes, new residual | None)
    gate: Callable[..., Any]  # (gate_up, activation, packed) -> codes
    run: Callable[..., Any]  # (codes, packed, bias | None) -> [M, N]


@dataclass(frozen=True, slots=True)
class Implementation:
    op: str
    name: str  # unique within the op; "reference", "cpu", "triton", ...
    priority: int  # higher is preferred
    requires: Callable[[OpQuery], str | None]  # None: usable; else why not, one plain sentence
    run: Callable[..., Any]  # may be a Deferred, which select resolves
    pack: Callable[[Any], Any] | None = None  # linear, embedding, experts: the weight in the form run wants
    detail: str = ""  # for people: instruction set, tile form
    codes: CodedInput | Deferred | None = None  # linear: select resolves it
    # A step of more rows asks the device, and cannot be recorded and replayed. 0: any step; None: none
    captured_rows: int | None = None


@dataclass(frozen=True, slots=True)
class Deferred:
    """What stands in a module imported when it is first needed: compilers are large, and most hosts need none."""

    module: str
    name: str

    def __call__(self, *arguments: Any) -> Any:
        return self.resolve()(*arguments)

    def resolve(self) -> Any:
        return getattr(importlib.import_module(self.module), self.name)


@dataclass(frozen=True, slots=True)
class Choice:
    """One implementation as a query sees it."""

    name: str
    priority: int
    reason: str | None  # None: usable
    detail: str = ""


@cache
def _loaded() -> tuple[dict[str, tuple[Implementation, ...]], dict[str, str]]:
    """Implementations by op, best first, and the backends that are not here with the reason."""
    by_op: dict[str, list[Implementation]] = {op: [] for op in OPS}
    absent: dict[str, str] = {}
    for name in BACKENDS:
        if importlib.util.find_spec(name) is None:
            absent[name] = f"{name} is not part of this installation"
            continue
        for impl in _implementations(name):
            if impl.op not in by_op:
                raise LookupError(f"{name} offers the unknown op {impl.op!r}; ops are {', '.join(OPS)}")
            if any(known.name == impl.name for known in by_op[impl.op]):
                raise LookupError(f"op {impl.op} has two implementations named {impl.name!r}")
            by_op[impl.op].append(impl)
    ordered = {op: tuple(sorted(impls, key=lambda i: -i.priority)) for op, impls in by_op.items()}
    return ordered, absent


def _implementations(module_name: str) -> Iterable[Implementation]:
    found: Iterable[Implementation] = importlib.import_module(module_name).implementations()
    return found


def implementations(op: str) -> tuple[Implementation, ...]:
    """All implementations of an op, best first, usable or not."""
    return _loaded()[0][op]


def select(op: str, query: OpQuery) -> Implementation:
    """The best usable implementation. Raises LookupError for an unknown op only: the reference takes any query."""
    for impl in implementations(op):
        if impl.requires(query) is None:
            found = replace(impl, run=impl.run.resolve()) if isinstance(impl.run, Deferred) else impl
            return replace(found, codes=impl.codes.resolve()) if isinstance(impl.codes, Deferred) else found
    raise LookupError(f"no implementation of {op} takes {query}")


def explain(op: str, query: OpQuery) -> tuple[Choice, ...]:
    """Every implementation of an op, best first, each with the reason it cannot be used (None: it can)."""
    return tuple(Choice(i.name, i.priority, i.requires(query), i.detail) for i in implementations(op))


def absent_backends() -> dict[str, str]:
    """Backends that this installation lacks, with a sentence each; for doctor."""
    return dict(_loaded()[1])


def why(op: str, query: OpQuery) -> str:
    """One line for people: what was chosen, and why not what was preferred."""
    choices = explain(op, query)
    chosen = next(c for c in choices if c.reason is None)
    passed = [f"{c.name}: {c.reason}" for c in choices if c.reason is not None and c.priority > chosen.priority]
    label = chosen.name + (f" ({chosen.detail})" if chosen.detail else "")
    return label + (f"; not {'; not '.join(passed)}" if passed else "")
