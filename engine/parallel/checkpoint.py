"""ShardedCheckpoint: a checkpoint of which one rank sees its own share."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from engine.errors import UnsupportedFormat
from engine.ggml_types import TYPE_BY_NAME
from engine.layers.weight import Weight, stack_rows
from engine.models.checkpoint import MappedCheckpoint, Progress
from engine.parallel.shards import Shard, share_of
from engine.quant.coded_tensor import HALF_BYTE_KINDS, CodedTensor
from engine.quant.quant_tensor import QuantTensor
from engine.spec.model_spec import ModelSpec, TensorInfo
from engine.spec.quantised_tensors import PART
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

    def _asked_of(self, role: str, layer: int | None, info: TensorInfo) -> range | None:
        whole = super()._asked_of(role, layer, info)
        if layer is None or whole is None:
            return whole
        if PART in role or role in _BY_COLUMNS:
            return None  # cut on the host, into other memory
        if role not in _BY_ROWS:
            return whole
        runs = self._runs(role, layer)
        row_bytes = info.size_bytes // info.shape[0]
        return whole[runs[0].start * row_bytes : runs[0].stop * row_bytes] if len(runs) == 1 else None

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
        if isinstance(weight, CodedTensor):
            return self._coded_columns(weight, name, layer, run)
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

    def _coded_columns(self, weight: CodedTensor, name: str, layer: int, run: range) -> CodedTensor:
        group = weight.group
        uneven = weight.group < weight.shape[1] and (run.start % group or run.stop % group)
        if weight.columns is not None or weight.outliers is not None or uneven:
            raise UnsupportedFormat(
                f"{self._spec.name} stores {name} of layer {layer} as {weight.kind} in groups of {group}, "
                f"{'in an order or with outliers of its own' if not uneven else 'of which one would be cut'}; rank "
                f"{self.shard.rank} of {self.shard.degree} cannot take the columns {run.start:,} to {run.stop:,}.",
                "Use fewer ranks, or a checkpoint with smaller groups, without desc_act and without outliers.",
            )
        halves = 2 if weight.kind in HALF_BYTE_KINDS else 1
        groups = slice(run.start // group, -(-run.stop // group))
        return replace(
            weight,
            shape=(weight.shape[0], len(run)),
            codes=weight.codes[:, run.start // halves : run.stop // halves].contiguous(),
            scales=weight.scales[:, groups].contiguous(),
            zeros=None if weight.zeros is None else weight.zeros[:, groups].contiguous(),
        )


def _rows(weight: Weight, run: range) -> Weight:
    if isinstance(weight, CodedTensor):
        return weight.take(slice(run.start, run.stop))
    if isinstance(weight, Tensor):
        return weight[run.start : run.stop]
    return QuantTensor(weight.kind, weight.data[run.start : run.stop], (len(run), weight.shape[1]))


def _scaled(run: range, by: int) -> range:
    return range(run.start * by, run.stop * by)


def _moved(run: range, by: int) -> range:
    return range(run.start + by, run.stop + by)
