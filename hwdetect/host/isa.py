"""Names of the instruction sets that kernels choose by, from the kernel's own flag lists, weakest first."""

from __future__ import annotations

# level -> every flag that must be there. x86 names are /proc/cpuinfo `flags`, Arm ones `Features`.
_X86: tuple[tuple[str, frozenset[str]], ...] = (
    ("sse4_2", frozenset({"sse4_2"})),
    ("avx", frozenset({"avx"})),
    ("avx2", frozenset({"avx2", "fma", "f16c"})),
    ("avx_vnni", frozenset({"avx_vnni"})),
    ("avx512", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})),
    ("avx512_vnni", frozenset({"avx512f", "avx512_vnni"})),
    ("avx512_bf16", frozenset({"avx512f", "avx512_bf16"})),
    ("avx512_fp16", frozenset({"avx512f", "avx512_fp16"})),
    ("avx10_1", frozenset({"avx10_1"})),
    ("avx10_2", frozenset({"avx10_2"})),
    ("amx_int8", frozenset({"amx_tile", "amx_int8"})),
    ("amx_bf16", frozenset({"amx_tile", "amx_bf16"})),
    ("amx_fp16", frozenset({"amx_tile", "amx_fp16"})),
)
_ARM: tuple[tuple[str, frozenset[str]], ...] = (
    ("neon", frozenset({"asimd"})),
    ("neon_fp16", frozenset({"asimdhp"})),
    ("neon_dotprod", frozenset({"asimddp"})),
    ("neon_i8mm", frozenset({"i8mm"})),
    ("neon_bf16", frozenset({"bf16"})),
    ("sve", frozenset({"sve"})),
    ("sve2", frozenset({"sve2"})),
    ("sme", frozenset({"sme"})),
)
_OTHER: tuple[tuple[str, frozenset[str]], ...] = (
    ("neon32", frozenset({"neon"})),
    ("lsx", frozenset({"lsx"})),
    ("lasx", frozenset({"lasx"})),
    ("vx", frozenset({"vx"})),
)


def isa_levels(flags: frozenset[str]) -> tuple[str, ...]:
    """The levels that `flags` completely covers, weakest first."""
    if "asimd" in flags:
        table = _ARM
    elif "sse2" in flags or "avx" in flags:
        table = _X86
    else:
        table = _OTHER
    return tuple(name for name, needed in table if needed <= flags)
