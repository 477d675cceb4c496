"""One layer's tensors rounded, some rows at a time: what is scaled with what, and which tensors are written."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.models.rounding import NO_OUTLIERS, OutlierSet, input_of
from engine.quant.coded_tensor import CodedTensor, stack_coded
from engine.quant.encode import encode, encode_fp8, encode_mixed
from engine.quantize.compensation import Compensator, compensated_to
from engine.quantize.int4_search import InputSample, best_scale, rounded_int4, tile_rows
from engine.quantize.learning import LayerInputs
from engine.quantize.source import NamedTensor, Source
from engine.quantize.stored_form import stored_parts
from engine.spec.family import Norms
from engine.spec.model_spec import MlpKind
from engine.spec.precision import WeightPrecision

NORM_OF = {"attn_in": "attn_norm", "mlp_in": "mlp_norm"}
UPS = ("mlp_up", "mlp_gate_up", "mlp_up_bias")  # what makes the inner width, in its last rows
# Rows whose columns are gone through at once. On a host some for each thread: they stay in a core's cache, and are
# little memory; on an accelerator each column costs some launches.
THREAD_ROWS, LEAST_ROWS, HOST_NUMBERS, DEVICE_NUMBERS = 256, 512, 1 << 23, 1 << 26


@dataclass(slots=True)
class _Known:
    """What a text taught of one input, as all that reads it needs it."""

    mean_square: Tensor | None = None  # None: nothing
    compensators: tuple[Compensator, ...] = ()
    outliers: OutlierSet = NO_OUTLIERS

    @classmethod
    def of(cls, sample: InputSample) -> _Known:
        """Mutates: sample, whose products are let go of as they are no longer needed: they are as much memory"""
        found = cls(sample.mean_square)
        while sample.moments:
            found.compensators += (Compensator.of(sample.moments.pop(0)),)
        return found


@dataclass(slots=True)
class _Scales:
    """What columns are multiplied by, by input, and what makes those inputs is divided by. On the device"""

    columns: dict[str, Tensor] = field(default_factory=dict)

    def apply(self, role: str, tile: Tensor, first: int, rows: int) -> None:
        """Shapes: tile [n, K], from the row first on of a matrix of so many rows. Mutates: tile"""
        scale = self.columns.get(input_of(role))
        if scale is not None:
            tile.mul_(scale)
        inner = self.columns.get("mlp_inner")
        if inner is not None and role in UPS:
            skipped = rows - len(inner) - first  # rows of this tile before those that are divided
            divided = tile[max(0, skipped) :]
            start = max(0, -skipped)
            divided.div_(inner[start : start + len(divided)].unsqueeze(1))


@dataclass(slots=True)
class LayerRounding:
    """Owner: one quantisation."""

    source: Source
    precision: WeightPrecision
    group: int  # of four-bit weights and of E4M3; 0: a row

    def tensors(self, index: int, inputs: LayerInputs | None) -> dict[str, Tensor]:
        """What is written for a layer. Mutates: inputs, of which each is let go of after the last that reads it

        inputs: None where nothing was learnt
        """
        tensors = self.source.layer(self.source.spec.layers[index])
        rounded = [tensor for tensor in tensors if tensor.rounded]
        kept = {tensor.role: tensor.numbers() for tensor in tensors if not tensor.rounded}
        scales = _Scales()
        if self.precision is WeightPrecision.INT4 and inputs is not None:
            scales = self._searched(index, rounded, inputs)
            self._fold(kept, scales)
        out = {tensor.name: kept[tensor.role].contiguous() for tensor in tensors if not tensor.rounded}
        # Those of one input one after the other, so that what is known of it is there once.
        for name in dict.fromkeys(input_of(tensor.role) for tensor in rounded):
            known = self._known(name, inputs, scales)
            for tensor in rounded:
                if input_of(tensor.role) == name:
                    out |= self._stored(tensor, known, scales)
            del known  # or it would be held while the next is made
        return out

    def _known(self, name: str, inputs: LayerInputs | None, scales: _Scales) -> _Known:
        if inputs is None:
            return _Known()
        if self.precision is WeightPrecision.INT8_MIXED:
            return _Known(outliers=inputs.outliers.get(name, NO_OUTLIERS))
        sample = inputs.samples.pop(name, None)
        if sample is None:
            return _Known()
        if name in scales.columns:
            sample.divide(scales.columns[name])
        return _Known.of(sample)

    def _stored(self, tensor: NamedTensor, known: _Known, scales: _Scales) -> dict[str, Tensor]:
        """A matrix's tensors by name."""
        rows, columns = tensor.shape
        device = self.source.device
        at_once = _rows_at_once(columns, device)
        coded, beside, first = [], [], 0
        for tile in tensor.tiles(at_once, device):
            scales.apply(tensor.role, tile, first, rows)
            coded.append(self._rounded(tile, known).to("cpu"))
            beside.append(tile[:, known.outliers.columns.to(device)].to("cpu"))
            first += len(tile)
            del tile  # or it would be held while the next is made
        parts = stored_parts(stack_coded(coded), torch.cat(beside))
        module = tensor.name.removesuffix(".weight")
        return {f"{module}.{suffix}": part.contiguous() for suffix, part in parts.items()}

    def _rounded(self, tile: Tensor, known: _Known) -> CodedTensor:
        if self.precision is WeightPrecision.INT8_MIXED:
            return encode_mixed(tile, known.outliers.columns.to(tile.device), threshold=known.outliers.threshold)
        nearest = self._to_nearest(tile, known.mean_square)
        return compensated_to(nearest, tile, known.compensators) if known.compensators else nearest

    def _to_nearest(self, tile: Tensor, weights: Tensor | None) -> CodedTensor:
        if self.precision is WeightPrecision.INT4:
            return rounded_int4(tile, self.group or tile.shape[1], weights)
        if self.precision is WeightPrecision.FP8:
            return encode_fp8(tile, self.group or tile.shape[1], weights)
        return encode(tile, str(self.precision))

    def _searched(self, index: int, rounded: list[NamedTensor], inputs: LayerInputs) -> _Scales:
        """The scales of all inputs that are made by something which can be divided."""
        found = _Scales()
        for name, sample in inputs.samples.items():
            readers = [tensor for tensor in rounded if input_of(tensor.role) == name]
            if not readers or not self._can_fold(name, index, rounded):
                continue
            columns, device = readers[0].shape[1], self.source.device
            tiles = (tile for tensor in readers for tile in tensor.tiles(tile_rows(columns, device), device))
            found.columns[name] = best_scale(tiles, sample, self.group or columns)
        return found

    def _can_fold(self, name: str, index: int, rounded: list[NamedTensor]) -> bool:
        layer = self.source.spec.layers[index]
        if name in NORM_OF:
            return self.source.family.norms is not Norms.AFTER
        plain = layer.mlp.kind is MlpKind.DENSE and layer.mlp.activation in ("silu", "gelu_tanh")
        return name == "mlp_inner" and plain and any(tensor.role in UPS for tensor in rounded)

    def _fold(self, kept: dict[str, Tensor], scales: _Scales) -> None:
        """Into what is not rounded. Mutates: kept, whose tensors stay as they are"""
        below_one = 1.0 if self.source.family.hf_norms_below_one else 0.0
        for name, on_device in scales.columns.items():
            scale = on_device.to("cpu")
            if name in NORM_OF:
                norm = NORM_OF[name]
                kept[norm] = (kept[norm].float() + below_one) / scale - below_one
                if name == "mlp_in" and "router" in kept:
                    kept["router"] = (kept["router"].float() * scale).to(kept["router"].dtype)
            elif "mlp_up_bias" in kept:
                bias = kept["mlp_up_bias"].clone()
                bias[-len(scale) :] /= scale.to(bias.dtype)
                kept["mlp_up_bias"] = bias


def _rows_at_once(columns: int, device: torch.device) -> int:
    if device.type != "cpu":
        return max(1, DEVICE_NUMBERS // columns)
    return max(LEAST_ROWS, min(THREAD_ROWS * torch.get_num_threads(), HOST_NUMBERS // columns))
