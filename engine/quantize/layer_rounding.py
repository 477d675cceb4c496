"""One layer's tensors rounded: what is scaled with what, and which tensors are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.rounding import NO_OUTLIERS, input_of
from engine.quant.coded_tensor import CodedTensor
from engine.quant.encode import encode, encode_fp8, encode_mixed
from engine.quantize.compensation import compensated_to
from engine.quantize.int4_search import best_scale, rounded_int4
from engine.quantize.learning import LayerInputs
from engine.quantize.source import NamedTensor, Source
from engine.quantize.stored_form import stored_parts
from engine.spec.family import Norms
from engine.spec.model_spec import MlpKind
from engine.spec.precision import WeightPrecision

NORM_OF = {"attn_in": "attn_norm", "mlp_in": "mlp_norm"}


@dataclass(slots=True)
class LayerRounding:
    """Owner: one quantisation."""

    source: Source
    precision: WeightPrecision
    group: int  # of four-bit weights and of E4M3; 0: a row

    def tensors(self, index: int, found: Iterator[NamedTensor], inputs: LayerInputs | None) -> dict[str, Tensor]:
        """What is written for a layer. found: each is let go of before the next is read, where none needs another.

        inputs: None where nothing was learnt
        """
        scales: dict[str, Tensor] = {}
        if self.precision is WeightPrecision.INT4 and inputs is not None:
            tensors = [(tensor.role, tensor.name, tensor.rounded, tensor.numbers) for tensor in found]
            numbers = {role: of_role for role, _, _, of_role in tensors}
            order = [(role, name, rounded) for role, name, rounded, _ in tensors]
            del tensors
            scales = self._fold_scales(index, numbers, [role for role, _, rounded in order if rounded], inputs)
            found = (NamedTensor(role, name, numbers.pop(role), rounded) for role, name, rounded in order)
        out: dict[str, Tensor] = {}
        for tensor in found:
            if not tensor.rounded:
                out[tensor.name] = tensor.numbers.to("cpu").contiguous()
                continue
            coded = self._rounded(tensor.numbers, tensor.role, inputs, scales.get(input_of(tensor.role)))
            module = tensor.name.removesuffix(".weight")
            parts = stored_parts(coded.to("cpu"), tensor.numbers.to("cpu"))
            out |= {f"{module}.{suffix}": part.contiguous() for suffix, part in parts.items()}
            del tensor  # or it would be held while the next is read
        return out

    def _rounded(self, matrix: Tensor, role: str, inputs: LayerInputs | None, scale: Tensor | None) -> CodedTensor:
        name = input_of(role)
        if self.precision is WeightPrecision.INT8_MIXED:
            known = NO_OUTLIERS if inputs is None else inputs.outliers.get(name, NO_OUTLIERS)
            return encode_mixed(matrix, known.columns.to(matrix.device), threshold=known.threshold)
        sample = None if inputs is None else inputs.samples.get(name)
        if sample is None:
            return self._to_nearest(matrix, None)
        sample = sample.to(matrix.device) if scale is None else sample.to(matrix.device).scaled(scale)
        return compensated_to(self._to_nearest(matrix, sample.mean_square), matrix, sample.moments)

    def _to_nearest(self, matrix: Tensor, weights: Tensor | None) -> CodedTensor:
        if self.precision is WeightPrecision.INT4:
            return rounded_int4(matrix, self.group or matrix.shape[1], weights)
        if self.precision is WeightPrecision.FP8:
            return encode_fp8(matrix, self.group or matrix.shape[1], weights)
        return encode(matrix, str(self.precision))

    def _fold_scales(
        self, index: int, numbers: dict[str, Tensor], rounded: list[str], inputs: LayerInputs
    ) -> dict[str, Tensor]:
        """Multiply matrices' columns and divide what makes their inputs. Mutates: numbers. -> scales by input

        rounded: roles
        """
        scales: dict[str, Tensor] = {}
        for name, sample in inputs.samples.items():
            readers = [role for role in rounded if input_of(role) == name]
            if not readers or not self._can_fold(name, index, numbers):
                continue
            matrices = [numbers[role] for role in readers]
            group = self.group or matrices[0].shape[1]
            scale = best_scale(matrices, sample.to(matrices[0].device), group)
            scales[name] = scale
            del matrices
            for role in readers:
                numbers[role] = numbers[role] * scale
            if name == "mlp_inner":
                self._divide_up(numbers, scale)
            else:
                norm = NORM_OF[name]
                below_one = 1.0 if self.source.family.hf_norms_below_one else 0.0
                numbers[norm] = ((numbers[norm].float() + below_one) / scale.to("cpu") - below_one).to(torch.float32)
                for router in (role for role in numbers if role == "router" and name == "mlp_in"):
                    numbers[router] = (numbers[router].float() * scale.to("cpu")).to(numbers[router].dtype)
        return scales

    def _can_fold(self, name: str, index: int, numbers: dict[str, Tensor]) -> bool:
        layer = self.source.spec.layers[index]
        if name in NORM_OF:
            return self.source.family.norms is not Norms.AFTER
        plain = layer.mlp.kind is MlpKind.DENSE and layer.mlp.activation in ("silu", "gelu_tanh")
        return name == "mlp_inner" and plain and ("mlp_up" in numbers or "mlp_gate_up" in numbers)

    def _divide_up(self, numbers: dict[str, Tensor], scale: Tensor) -> None:
        """The rows that make the inner width, which the gate's function leaves linear."""
        for role in ("mlp_up", "mlp_gate_up", "mlp_up_bias"):
            if role not in numbers:
                continue
            rows = numbers[role].clone()
            factor = scale if rows.dim() == 1 else scale.unsqueeze(1)
            rows[-len(scale) :] /= factor.to(rows.device, rows.dtype)
            numbers[role] = rows
