"""What one rank holds of a model that several ranks compute together: which heads, which columns, which rows.

Pure: no torch, no processes. Page layout and loading read the same answer. A rank's query heads are neighbours, and its
KV heads are those that its query heads read: where there are fewer KV heads than ranks, neighbours hold the same one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.errors import PlanError, UnsupportedFormat
from engine.spec.model_spec import AttentionKind, LayerSpec, MlpKind, ModelSpec

_SPLIT_ATTENTION = (AttentionKind.FULL, AttentionKind.SLIDING)


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank among degree ranks."""

    rank: int
    degree: int

    def __post_init__(self) -> None:
        if self.degree < 1 or not 0 <= self.rank < self.degree:
            raise PlanError(
                f"rank {self.rank} of {self.degree} is no rank.", f"Ranks count from 0 to {max(self.degree, 1) - 1}."
            )


@dataclass(frozen=True, slots=True)
class LayerShare:
    heads: range
    kv_heads: range
    kv_holders: range  # the ranks that hold these same KV heads, this one among them
    mlp_columns: range


@dataclass(frozen=True, slots=True)
class ModelShare:
    layers: tuple[LayerShare, ...]
    vocab_rows: range  # of an output matrix split by rows; ranks differ by one row at most


def share_of(spec: ModelSpec, shard: Shard) -> ModelShare:
    """Raises: PlanError for a degree that does not divide the model, UnsupportedFormat for layers that are not split"""
    check_degree(spec, shard.degree)
    return ModelShare(
        layers=tuple(_layer_share(layer, shard) for layer in spec.layers),
        vocab_rows=_uneven(spec.vocab_size, shard),
    )


def for_rank(spec: ModelSpec, shard: Shard) -> ModelSpec:
    """The model as one rank computes it: page layout and layers built from it are the rank's own.

    Its tensors stay the whole checkpoint's, of which a rank reads a share. Raises: as share_of
    """
    share = share_of(spec, shard)
    layers = []
    for layer, held in zip(spec.layers, share.layers, strict=True):
        attention = replace(layer.attention, num_heads=len(held.heads), num_kv_heads=len(held.kv_heads))
        layers.append(
            replace(layer, attention=attention, mlp=replace(layer.mlp, intermediate_size=len(held.mlp_columns)))
        )
    return replace(spec, layers=tuple(layers))


def check_degree(spec: ModelSpec, degree: int) -> None:
    """Raises: as share_of"""
    for layer in spec.layers:
        _check_kind(spec, layer)
    if degree < 1:
        raise PlanError(f"{spec.name} cannot be computed by {degree} ranks.", "Ask for 1 or more.")
    for layer in spec.layers:
        what = _uneven_part(layer, degree)
        if what is not None:
            raise PlanError(
                f"{spec.name} has {what} in layer {layer.index}; {degree} ranks cannot share them evenly.",
                f"Use {nearest_degree(spec, degree)} ranks, the nearest number that can.",
            )


def nearest_degree(spec: ModelSpec, degree: int) -> int:
    """The degree nearest to the one asked that divides every layer; of two equally near, the smaller."""
    most = min(layer.attention.num_heads for layer in spec.layers)
    able = [n for n in range(1, most + 1) if all(_uneven_part(layer, n) is None for layer in spec.layers)]
    return min(able, key=lambda n: (abs(n - degree), n))


def shard_of_process(process: int, sequence_degree: int, tensor_degree: int) -> Shard:
    """The share of a process that splits tokens sequence_degree ways by one step and none by the next.

    Processes are numbered with the tensor rank running fastest. An all-to-all over tokens leaves process (s, t) with
    the s-th part of tensor shard t's heads; as a rank of all processes it must hold those heads, or its pages would be
    another rank's: so its rank is t * sequence_degree + s, the transpose.
    Source: Shift Parallelism (arXiv 2509.16495)
    """
    sequence_rank, tensor_rank = divmod(process, tensor_degree)
    return Shard(tensor_rank * sequence_degree + sequence_rank, sequence_degree * tensor_degree)


def _check_kind(spec: ModelSpec, layer: LayerSpec) -> None:
    refused = None
    if layer.attention.kind not in _SPLIT_ATTENTION:
        refused = f"{layer.attention.kind} attention"
    elif layer.mlp.kind is not MlpKind.DENSE:
        refused = "experts"
    elif layer.attention.qk_norm_whole:
        refused = "one norm over all heads"
    if refused is not None:
        raise UnsupportedFormat(
            f"{spec.name} has {refused} in layer {layer.index}, which is not split over ranks.",
            "Run it on one device, or as several replicas.",
        )


def _uneven_part(layer: LayerSpec, degree: int) -> str | None:
    """The first part of a layer that so many ranks cannot share, with its number."""
    heads, kv_heads = layer.attention.num_heads, layer.attention.num_kv_heads
    if heads % degree:
        return f"{heads} query heads"
    if kv_heads % degree and degree % kv_heads:
        return f"{kv_heads} KV heads"
    if layer.mlp.intermediate_size % degree:
        return f"{layer.mlp.intermediate_size:,} MLP columns"
    return None


def _layer_share(layer: LayerSpec, shard: Shard) -> LayerShare:
    kv_heads = layer.attention.num_kv_heads
    if kv_heads >= shard.degree:
        held, holders = _even(kv_heads, shard), range(shard.rank, shard.rank + 1)
    else:
        sharing = shard.degree // kv_heads
        head = shard.rank // sharing
        held, holders = range(head, head + 1), range(head * sharing, (head + 1) * sharing)
    return LayerShare(
        heads=_even(layer.attention.num_heads, shard),
        kv_heads=held,
        kv_holders=holders,
        mlp_columns=_even(layer.mlp.intermediate_size, shard),
    )


def _even(count: int, shard: Shard) -> range:
    each = count // shard.degree
    return range(shard.rank * each, (shard.rank + 1) * each)


def _uneven(count: int, shard: Shard) -> range:
    return range(count * shard.rank // shard.degree, count * (shard.rank + 1) // shard.degree)
