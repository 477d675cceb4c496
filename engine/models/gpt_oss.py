"""gpt-oss: a decoder whose experts lie interleaved, in Hugging Face folders transposed or as MXFP4 blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.devices.upload import upload
from engine.layers.weight import Weight, narrowed, take_rows
from engine.models.decoder import Decoder
from engine.models.parts import Parts
from engine.quant.coded_tensor import check_exponents
from engine.quant.expert_stack import ExpertStack
from engine.quant.mxfp4 import from_adjacent_nibbles
from engine.spec.model_spec import ExpertStorage, LayerSpec, MlpSpec


class GptOssParts(Parts):
    def expert_stacks(self, layer: LayerSpec) -> tuple[ExpertStack, ExpertStack]:
        spec = layer.mlp
        if spec.storage is ExpertStorage.ONE_MATRIX_EACH:
            return super().expert_stacks(layer)
        gate_up, down = (self._stored(role, layer) for role in ("experts_gate_up", "experts_down"))
        gate_up = take_rows(gate_up, gate_first(spec).to(self.device))
        return ExpertStack(gate_up, spec.num_experts), ExpertStack(down, spec.num_experts)

    def expert_biases(self, layer: LayerSpec) -> tuple[Tensor | None, Tensor | None]:
        if layer.mlp.storage is ExpertStorage.ONE_MATRIX_EACH:
            return super().expert_biases(layer)
        gate_up = self.vector("experts_gate_up_bias", layer.index, self.dtype)
        rows = gate_first(layer.mlp).to(self.device)
        gate_up = gate_up.reshape(-1)[rows].view(gate_up.shape)
        return gate_up, self.vector("experts_down_bias", layer.index, self.dtype)

    def _stored(self, role: str, layer: LayerSpec) -> Weight:
        """All experts' matrices of a role, output rows under one another."""
        spec, i = layer.mlp, layer.index
        if spec.storage is ExpertStorage.MXFP4_BLOCKS:
            blocks, scales = (self.checkpoint.matrix(f"{role}_{part}", i) for part in ("blocks", "scales"))
            assert isinstance(blocks, Tensor)
            assert isinstance(scales, Tensor)
            sizes = check_exponents(upload(scales, self.device), f"layer {i}'s {role}_scales", "MXFP4")
            there = from_adjacent_nibbles(upload(blocks, self.device), sizes)
            return narrowed(there, self.device, self.dtype)
        stored = self.checkpoint.matrix("experts_down_stack" if role == "experts_down" else role, i)
        assert isinstance(stored, Tensor)
        columns = stored.shape[0] // spec.num_experts
        turned = upload(stored, self.device).view(spec.num_experts, columns, -1).transpose(1, 2).reshape(-1, columns)
        return self.placed(turned, role, i)


class GptOssDecoder(Decoder):
    parts_of = GptOssParts


def gate_first(spec: MlpSpec) -> Tensor:
    """Row order that puts each expert's gate rows before its up rows, which are stored in turns."""
    rows = torch.arange(spec.num_experts * 2 * spec.intermediate_size)
    return rows.view(spec.num_experts, spec.intermediate_size, 2).transpose(1, 2).reshape(-1)
