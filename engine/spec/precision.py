"""What a model's weights may be made into when they are loaded or quantised. Imports nothing that needs a device."""

from __future__ import annotations

from enum import StrEnum

from engine.errors import InvalidParameter


class WeightPrecision(StrEnum):
    STORED = "stored"  # as the checkpoint has them
    FP8 = "fp8"  # E4M3, one multiplier a row, in narrow models for FP8_GROUP neighbours
    INT8 = "int8"  # one multiplier a row
    INT8_MIXED = "int8-mixed"  # ... but the inputs that grow large, which stay in 16 bits
    INT4 = "int4"  # a multiplier and a zero point for 128 neighbours
    FP4 = "fp4"  # E2M1 with an E4M3 multiplier for 16 neighbours


class WrittenPrecision(StrEnum):
    """Those that `bayard quantize` writes; stored: a cache's multipliers beside the weights as they are."""

    STORED = "stored"
    FP8 = "fp8"
    INT8 = "int8"
    INT8_MIXED = "int8-mixed"
    INT4 = "int4"


class Activations(StrEnum):
    """What kernels may round activations to where weights are of that kind."""

    EXACT = "exact"
    INT8 = "int8"
    FP8 = "fp8"


# Bits a number, multipliers included, for rows of a few thousand numbers.
BITS: dict[WeightPrecision, float] = {
    WeightPrecision.FP8: 8.01,
    WeightPrecision.INT8: 8.01,
    WeightPrecision.INT8_MIXED: 8.2,
    WeightPrecision.INT4: 4.1875,
    WeightPrecision.FP4: 4.5,
}

# E4M3 keeps four bits of each number: what that costs shows in small models, whose few weights say more each, and whose
# steps are bound by launches rather than bytes. So theirs get finer multipliers.
NARROW = 2048  # of a model's width; below it models are small
FP8_GROUP = 32


FEWEST_NEIGHBOURS = 16  # that share a multiplier of four-bit codes made at load


def held_precision(precision: WeightPrecision, width: int) -> WeightPrecision:
    """What a matrix is rounded to at load: to int8, which any width has, where groups of four-bit codes do not fit."""
    of_groups = precision in (WeightPrecision.INT4, WeightPrecision.FP4)
    return WeightPrecision.INT8 if of_groups and width % FEWEST_NEIGHBOURS else precision


def fp8_group(hidden_size: int) -> int:
    """Neighbours with one multiplier; 0: a row."""
    return FP8_GROUP if hidden_size < NARROW else 0


def bits_of(precision: WeightPrecision, hidden_size: int) -> float:
    """Of a number in a model of that width, multipliers included."""
    grouped = precision is WeightPrecision.FP8 and fp8_group(hidden_size)
    return 8 + 16 / FP8_GROUP if grouped else BITS[precision]


# What the head becomes on an accelerator where it is no embedding table too and activations stay exact: it is read
# whole for a token, and eight bits a number cost it next to nothing.
HEADS: dict[WeightPrecision, WeightPrecision] = {
    WeightPrecision.FP8: WeightPrecision.FP8,
    WeightPrecision.INT8: WeightPrecision.INT8,
    WeightPrecision.INT4: WeightPrecision.INT8,
    WeightPrecision.FP4: WeightPrecision.INT8,
}

# Matrices of layers that are multiplied with activations. Embeddings, routers and what latent attention folds away
# keep their precision: they are few bytes or decide much. The head: see HEADS.
ROUNDED_ROLES = frozenset(
    {
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_qkv",
        "attn_o",
        "attn_q_a",
        "attn_q_b",
        "attn_kv_a",
        "mlp_gate",
        "mlp_up",
        "mlp_gate_up",
        "mlp_down",
        "shared_gate",
        "shared_up",
        "shared_down",
        "experts_gate",
        "experts_up",
        "experts_down",
        "experts_gate_up",
    }
)


def weight_precision(name: str, param: str = "weights") -> WeightPrecision:
    """Raises: InvalidParameter for a name that is none."""
    try:
        return WeightPrecision(name)
    except ValueError:
        known = ", ".join(WeightPrecision)
        raise InvalidParameter(f"{param} is {name!r}.", f"Use one of {known}.", param=param) from None


def is_rounded(role: str) -> bool:
    """Whether a precision other than STORED changes the matrices of a role (of one expert: role.number)."""
    return role.partition(".")[0] in ROUNDED_ROLES
