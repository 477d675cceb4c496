"""Parts: from a checkpoint's roles to the layers of a model, each on its device and packed for its kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels import registry
from engine.layers.attention import Attention
from engine.layers.embedding import Embedding
from engine.layers.experts import ExpertKernels, ExpertsMlp
from engine.layers.latent_attention import LatentAttention
from engine.layers.linear import Linear, Observer, WatchedLinear
from engine.layers.mlp import GatedMlp
from engine.layers.ops import Ops
from engine.layers.rope import long_or_short, rope_table
from engine.layers.weight import (
    Weight,
    decoded,
    half_style_rows,
    kind_of,
    narrowed,
    numbers,
    on_device,
    stack_rows,
    take_rows,
    together,
)
from engine.models.checkpoint import MappedCheckpoint
from engine.models.kv_scales import layer_kv_scales
from engine.models.packed_store import PackedStore
from engine.quant.coded_tensor import CodedTensor
from engine.quant.expert_stack import ExpertStack
from engine.quant.host_blocks import as_blocks
from engine.quant.quant_tensor import QuantTensor
from engine.spec.families import family_of
from engine.spec.model_spec import CheckpointFormat, LayerSpec, MlpKind, ModelSpec, RopeSpec

# Roles of routed experts' matrices, in one stack or another.
EXPERTS = ["experts_gate", "experts_up", "experts_down", "experts_gate_up", "experts_down_stack"]


class Parts:
    """Owner: a model while it loads."""

    observer: Observer | None = None  # is shown what projections are given, where a model is run to learn from it

    def __init__(
        self,
        spec: ModelSpec,
        checkpoint: MappedCheckpoint,
        device: torch.device,
        dtype: torch.dtype,
        ops: Ops,
        max_context_tokens: int,
    ) -> None:
        self.spec = spec
        self.family = family_of(spec.architecture)
        self.checkpoint = checkpoint
        self.device = device
        self.dtype = dtype
        self.ops = ops
        self._max_context_tokens = max_context_tokens
        self._ropes: dict[RopeSpec, Tensor] = {}
        from_gguf = spec.format is CheckpointFormat.GGUF
        self._interleaved = self.family.gguf_interleaved if from_gguf else self.family.hf_interleaved
        # The CPU's own kernels read rows of blocks; codes beside scales would be left to plain torch.
        self._wants_blocks = registry.select("linear", replace(ops.query, weight_kind="F16")).name == "cpu"
        self._norms_below_one = self.family.hf_norms_below_one and not from_gguf

    def embedding_and_head(self) -> tuple[Embedding, Linear]:
        embed = self.matrix("embed")
        table = self.ops.embedding(embed)
        if not self.spec.generates:
            return table, Linear([], 0)
        tied = self.spec.tie_embeddings
        kept = None if self._packed is None else self._packed.take("head")
        if kept is not None:
            if not tied:
                self.checkpoint.passed(["lm_head"], None)
            return table, self.ops.linear_of_packed(kept[0], [None], kept[1])
        head = embed if tied else self._own_head()
        linear = self.ops.linear([head], [None])
        self._keep("head", [part.packed for part in linear.parts], [head.shape[0]])
        return table, linear

    def _own_head(self) -> Weight:
        rounding = self.checkpoint.rounding
        if rounding is None or self.device.type == "cpu" or self.ops.query.activation != "exact":
            return self.matrix("lm_head")
        stored = on_device(self.checkpoint.matrix("lm_head", None), self.device)
        return narrowed(rounding.head(stored), self.device, self.dtype)

    def attention(self, layer: LayerSpec) -> Attention | LatentAttention:
        i, spec = layer.index, layer.attention
        normed = spec.qk_norm or spec.qk_norm_whole
        roles = ["attn_qkv"] if self.family.fused_qkv else ["attn_q", "attn_k", "attn_v"]
        orders = []
        if spec.rope is not None:
            turning = (spec.num_heads, spec.num_kv_heads)
            orders = [half_style_rows(heads, spec.head_dim, spec.rope.rotary_dim) for heads in turning]
        return Attention(
            spec=spec,
            layer=i,
            ops=self.ops,
            qkv=self.projection(roles, i, orders),
            o=self.projection(["attn_o"], i),
            cos_sin=self.rope(spec.rope),
            q_norm=self.norm("attn_q_norm", i) if normed else None,
            k_norm=self.norm("attn_k_norm", i) if normed else None,
            norm_eps=self.spec.norm_eps,
            sinks=self.vector("attn_sinks", i) if spec.sinks else None,
            kv_scales=layer_kv_scales(self.checkpoint, self.spec, layer, self.ops.query.kv_dtype, self.device),
        )

    def mlp(self, layer: LayerSpec) -> GatedMlp | ExpertsMlp:
        i, spec = layer.index, layer.mlp
        if spec.kind is MlpKind.EXPERTS:
            return self._experts(layer)
        roles = ["mlp_gate_up"] if self.family.fused_gate_up else ["mlp_gate", "mlp_up"]
        gate_up, down = self.projection(roles, i), self.projection(["mlp_down"], i)
        return GatedMlp(self.ops.gate(spec.activation), gate_up, down, spec.activation)

    def _experts(self, layer: LayerSpec) -> ExpertsMlp:
        i, spec = layer.index, layer.mlp
        biases = self.expert_biases(layer) if spec.bias else (None, None)
        shared = None
        if spec.shared_intermediate_size:
            inputs = self.projection(["shared_gate", "shared_up"], i)
            down_shared = self.projection(["shared_down"], i)
            shared = GatedMlp(self.ops.gate(spec.activation), inputs, down_shared, spec.activation)
        return ExpertsMlp(
            spec=spec,
            router=self._watched_router(layer),
            kernels=self._expert_kernels(layer),
            correction=self.vector("router_correction", i) if spec.router_correction else None,
            gate_up_bias=biases[0],
            down_bias=biases[1],
            shared=shared,
        )

    def _expert_kernels(self, layer: LayerSpec) -> ExpertKernels:
        key, activation = f"{layer.index}/experts", layer.mlp.activation
        kept = None if self._packed is None else self._packed.take(key)
        if kept is not None:
            gate_up, down = kept[0]
            self.checkpoint.passed(EXPERTS, layer.index)
            return self.ops.experts_of_packed((gate_up.kind, down.kind), gate_up, down, activation)
        kernels = self.ops.experts(*self.expert_stacks(layer), activation)
        self._keep(key, [kernels.gate_up, kernels.down], [])
        return kernels

    def _watched_router(self, layer: LayerSpec) -> Callable[[Tensor], Tensor]:
        """The router; its input is the experts', whose own are not seen: each expert gets other rows."""
        router, observer = self._router(layer), self.observer
        if observer is None:
            return router

        def watched(x: Tensor) -> Tensor:
            observer(["experts_gate", "experts_up"], layer.index, x)
            return router(x)

        return watched

    def _router(self, layer: LayerSpec) -> Callable[[Tensor], Tensor]:
        if not layer.mlp.router_wide or self.dtype == torch.float32:
            return self.projection(["router"], layer.index)
        weight = numbers(self.checkpoint.matrix("router", layer.index)).to(device=self.device, dtype=torch.float32)
        return lambda x: F.linear(x.to(torch.float32), weight)

    def expert_stacks(self, layer: LayerSpec) -> tuple[ExpertStack, ExpertStack]:
        """Each expert's gate above its up, and the downs."""
        i, count = layer.index, layer.mlp.num_experts
        gate_up = self._together([f"experts_{role}.{n}" for n in range(count) for role in ("gate", "up")], i)
        down = self._together([f"experts_down.{n}" for n in range(count)], i)
        if gate_up is None:
            ups = zip(self._each("experts_gate", layer), self._each("experts_up", layer), strict=True)
            gate_up = self._one_stack([part for pair in ups for part in pair])
        if down is None:
            down = self._one_stack(self._each("experts_down", layer))
        return ExpertStack(gate_up, count), ExpertStack(down, count)

    def _together(self, roles: list[str], layer: int) -> Weight | None:
        """Experts' matrices that came to the device as one, which is asked for at once."""
        found = self.checkpoint.together(roles, layer)
        return None if found is None else narrowed(found, self.device, self.dtype)

    def _one_stack(self, parts: list[Weight]) -> Weight:
        """All experts in one matrix; decoded where their codes differ in groups, order or outliers."""
        if all(together(parts[0], part) for part in parts[1:]):
            return stack_rows(parts)
        self.ops.held[f"experts of unlike {kind_of(parts[0])}"] = str(self.dtype).removeprefix("torch.")
        return stack_rows([decoded(part, self.dtype) for part in parts])

    def expert_biases(self, layer: LayerSpec) -> tuple[Tensor | None, Tensor | None]:
        """Shapes: [E, 2I], [E, hidden]"""
        gate, up, down = (
            self.vector(f"experts_{role}_bias", layer.index, self.dtype) for role in ("gate", "up", "down")
        )
        return torch.cat((gate, up), dim=1), down

    def _each(self, role: str, layer: LayerSpec) -> list[Weight]:
        """One matrix of each expert, stored in one stack or each for itself."""
        count = layer.mlp.num_experts
        if (role, layer.index) not in self.checkpoint:
            return [self.matrix(f"{role}.{expert}", layer.index) for expert in range(count)]
        stack = ExpertStack(self.matrix(role, layer.index), count)
        return [stack.of(expert) for expert in range(count)]

    def projection(self, roles: list[str], layer: int, orders: Sequence[Tensor | None] = ()) -> Linear:
        """The matrices of some roles side by side. orders: of rows where the rotation pairs neighbours as stored"""
        biases = [
            self.vector(f"{role}_bias", layer, self.dtype) if (f"{role}_bias", layer) in self.checkpoint else None
            for role in roles
        ]
        stored_orders = list(orders) if self._interleaved else []
        for index, order in enumerate(stored_orders):
            bias = biases[index]
            if order is not None and bias is not None:
                biases[index] = bias[order.to(self.device)]
        linear, widths = self._linear(roles, layer, stored_orders, biases)
        if self.checkpoint.adapters is not None:
            turned = orders if self.family.hf_interleaved else ()  # adapters are always stored as folders are
            linear = self.checkpoint.adapters.adapted(linear, roles, layer, widths, turned, self.device, self.dtype)
        return linear if self.observer is None else WatchedLinear(linear, self.observer, roles, layer)

    def _linear(
        self, roles: list[str], layer: int, orders: Sequence[Tensor | None], biases: list[Tensor | None]
    ) -> tuple[Linear, list[int]]:
        """And the outputs of each role; from what an earlier start packed, where that is kept."""
        key = f"{layer}/{'+'.join(roles)}"
        kept = None if self._packed is None else self._packed.take(key)
        if kept is not None:
            self.checkpoint.passed(roles, layer)
            return self.ops.linear_of_packed(kept[0], biases, kept[1]), list(kept[1])
        weights = [self.matrix(role, layer) for role in roles]
        for index, order in enumerate(orders):
            if order is not None:
                weights[index] = take_rows(weights[index], order.to(self.device))
        widths = [weight.shape[0] for weight in weights]
        linear = self.ops.linear(weights, biases)
        if all(part.order is None for part in linear.parts):
            self._keep(key, [part.packed for part in linear.parts], widths)
        if self.device.type == "cpu":
            self.checkpoint.release()  # packed is copied: the file's pages need not stay for the rest of the layer
        return linear, widths

    @property
    def _packed(self) -> PackedStore | None:
        """What an earlier start packed; not where a model is run to learn from it, whose kernels are others."""
        return self.checkpoint.packed if self.observer is None else None

    def _keep(self, key: str, parts: Sequence[object], widths: Sequence[int]) -> None:
        if self._packed is not None:
            self._packed.put(key, parts, widths)

    def matrix(self, role: str, layer: int | None = None) -> Weight:
        """A weight on its device: quantised as stored or rounded as asked, plain no wider than the activations."""
        return self.placed(self.checkpoint.matrix(role, layer), role, layer)

    def placed(self, stored: Weight, role: str, layer: int | None) -> Weight:
        """A weight that lies as its role's projection reads it, on its device and rounded."""
        rounding = self.checkpoint.rounding
        if isinstance(stored, QuantTensor):
            stored = on_device(stored, self.device)
            self.checkpoint.doubt(stored, role, layer)
        if rounding is not None and layer is not None and rounding.takes(role, layer):
            stored = rounding.made(on_device(stored, self.device), role, layer)
        if isinstance(stored, CodedTensor) and self._wants_blocks:
            held = as_blocks(stored)
            self._tell_held(kind_of(stored), kind_of(held))
            return narrowed(held, self.device, held.dtype if isinstance(held, Tensor) else self.dtype)
        return narrowed(stored, self.device, self.dtype)

    def _tell_held(self, kind: str, as_kind: str) -> None:
        told = self.ops.held.get(kind)
        if told is None:
            self.ops.held[kind] = as_kind
        elif as_kind not in told.split(" or "):
            self.ops.held[kind] = f"{told} or {as_kind}"

    def vector(self, role: str, layer: int | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.checkpoint.vector(role, layer, self.device, dtype)

    def norm(self, role: str, layer: int | None = None) -> Tensor:
        stored = self.vector(role, layer)
        return stored + 1.0 if self._norms_below_one else stored

    def rope(self, rope: RopeSpec | None) -> Tensor | None:
        """The rotary table; layers with the same rotation share one."""
        if rope is None:
            return None
        if rope not in self._ropes:
            factors = self.vector("rope_factors") if rope.scaling_kind == "factors" else None
            if rope.scaling_kind == "long_factors":
                both = {length: self.vector(f"rope_{length}") for length in ("long", "short")}
                factors = both[long_or_short(rope, self._max_context_tokens)]
            self._ropes[rope] = rope_table(rope, self._max_context_tokens, self.device, factors)
        return self._ropes[rope]
