"""Which projections of a base an adapter's modules are, checked before anything is loaded. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import UnsupportedFormat
from engine.spec.adapter_spec import AdapterPair, AdapterSpec
from engine.spec.families import family_of
from engine.spec.model_spec import CheckpointFormat, ModelSpec
from engine.spec.tensor_names import stored_name
from engine.spec.tensor_table import Role, expected_tensors

# Roles that layers run as projections of their own or side by side.
PROJECTIONS = (
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
)


@dataclass(frozen=True, slots=True)
class AdapterTarget:
    role: Role
    pair: AdapterPair


def adapter_targets(adapter: AdapterSpec, base: ModelSpec) -> tuple[AdapterTarget, ...]:
    """The adapter's pairs by the base's roles.

    Raises: UnsupportedFormat where a module is no projection of the base, or has another size there
    """
    if base.is_encoder:
        raise UnsupportedFormat(
            f"{base.name} is an encoder; adapters are applied to decoders alone.", "Merge it into its base."
        )
    names = family_of(base.architecture).names
    places: dict[str, tuple[Role, tuple[int, ...]]] = {}
    for expected in expected_tensors(base):
        role, layer = expected.role
        if role in PROJECTIONS and layer is not None:
            module = stored_name(CheckpointFormat.HF, role, layer, names).removesuffix(".weight")
            places[module] = (expected.role, expected.shape)
    targets = []
    for pair in adapter.pairs:
        module = pair.module if pair.module.startswith("model.") else f"model.{pair.module}"
        if module not in places:
            ends = sorted({place.rsplit(".", 1)[-1] for place in places})
            raise UnsupportedFormat(
                f"the adapter {adapter.name} changes {pair.module}, which is no projection of {base.name} that can be "
                f"adapted; {', '.join(ends)} can.",
                "Name another base with --base, or merge the adapter into its own and import the result.",
            )
        role_of, shape = places[module]
        found = (pair.b.shape[0], pair.a.shape[1])
        if found != tuple(shape):
            raise UnsupportedFormat(
                f"the adapter {adapter.name} has {pair.module} for {list(found)}; {base.name} has {list(shape)} there.",
                "It was trained on another base: name that with --base.",
            )
        targets.append(AdapterTarget(role_of, pair))
    return tuple(targets)
