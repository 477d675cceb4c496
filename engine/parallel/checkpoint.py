"""ShardedCheckpoint: a checkpoint of which one rank sees its own share."""

from __future__ import annotations

from torch import Tensor

from engine.errors import UnsupportedFormat
from engine.ggml_types import TYPE_BY_NAME
from engine.layers.weight import Weight, stack_rows
from engine.models.checkpoint import MappedCheckpoint, Progress
from engine.parallel.shards import Shard, share_of
from engine.quant.quant_tensor import QuantTensor
from engine.spec.model_spec import ModelSpec
from engine.spec.tensor_table import Role

_BY_ROWS = ("attn_q", "attn_k", "attn_v", "attn_qkv", "mlp_gate", "mlp_up", "mlp_gate_up")
_BY_COLUMNS = ("attn_o", "mlp_down")
_ONCE = tuple(f"{role}_bias" for role in _BY_COLUMNS)  # added to a sum over ranks, so by one of them


class ShardedCheckpoint(MappedCheckpoint):
    """Projections into heads and MLP columns are cut by rows, those out of them by columns; the rest is whole.

    spec: the whole model's. Cuts by rows are views of the file where they are one run; cuts by columns are copies.
    Raises: as share_of; matrix raises UnsupportedFormat for a cut inside a quantised block
    """

    def __init__(self, spec: ModelSpec, shard: Shard, progress: Progress) -> None:
        super().__init__(spec, progress)
        self.shard = shard
        self._spec = spec
        self._share = share_of(spec, shard)

    def __contains__(self, role: Role) -> bool:
        return super().__contains__(role) and (role[0] not in _ONCE or self.shard.rank == 0)

    def matrix(self, name: str, layer: int | None = None) -> Weight:
        whole = super().matrix(name, layer)
        if layer is None:
            return whole
        if name in _BY_COLUMNS:
            return self._columns(whole, name, layer, self._runs(name, layer)[0])
        role = name.removesuffix("_bias")
        if role in _BY_ROWS or name == "attn_sinks":
            return stack_rows([_rows(whole, run) for run in self._runs(role, layer)])
        return whole

    def _runs(self, role: str, layer: int) -> list[range]:
        """The rows or columns of the whole matrix that are this rank's, in order."""
        attention, held = self._spec.layers[layer].attention, self._share.layers[layer]
        dim, heads, kv_heads = attention.head_dim, attention.num_heads, attention.num_kv_heads
        inner = self._spec.layers[layer].mlp.intermediate_size
        if role == "attn_sinks":
            return [held.heads]
        if role in ("attn_q", "attn_o"):
            return [_scaled(held.heads, dim)]
        if role in ("attn_k", "attn_v"):
            return [_scaled(held.kv_heads, dim)]
        if role == "attn_qkv":
            q, kv = _scaled(held.heads, dim), _scaled(held.kv_heads, dim)
            return [q, _moved(kv, heads * dim), _moved(kv, (heads + kv_heads) * dim)]
        if role == "mlp_gate_up":
            return [held.mlp_columns, _moved(held.mlp_columns, inner)]
        assert role in ("mlp_gate", "mlp_up", "mlp_down"), role
        return [held.mlp_columns]

    def _columns(self, weight: Weight, name: str, layer: int, run: range) -> Weight:
        if isinstance(weight, Tensor):
            return weight[:, run.start : run.stop].contiguous()
        stored = TYPE_BY_NAME[weight.kind]
        if run.start % stored.block_elements or run.stop % stored.block_elements:
            raise UnsupportedFormat(
                f"{self._spec.name} stores {name} of layer {layer} as {weight.kind} in blocks of "
                f"{stored.block_elements}; rank {self.shard.rank} of {self.shard.degree} would hold the columns "
                f"{run.start:,} to {run.stop:,}, which cuts one.",
                "Use fewer ranks, or a checkpoint with smaller blocks, for example Q8_0.",
            )
        begin, end = stored.row_bytes(run.start), stored.row_bytes(run.stop)
        return QuantTensor(weight.kind, weight.data[:, begin:end].contiguous(), (weight.shape[0], len(run)))


def _rows(weight: Weight, run: range) -> Weight:
    if isinstance(weight, Tensor):
        return weight[run.start : run.stop]
    return QuantTensor(weight.kind, weight.data[run.start : run.stop], (len(run), weight.shape[1]))


def _scaled(run: range, by: int) -> range:
    return range(run.start * by, run.stop * by)


def _moved(run: range, by: int) -> range:
    return range(run.start + by, run.stop + by)
