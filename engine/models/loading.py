"""load_model: from a ModelSpec to a model that runs on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from engine.batch import ForwardBatch
from engine.devices.upload import reading_ahead
from engine.errors import UnsupportedFormat
from engine.kernels.registry import OpQuery
from engine.models.adapters import AdapterBank
from engine.models.checkpoint import MappedCheckpoint as MappedCheckpoint
from engine.models.checkpoint import Progress, check_size
from engine.models.decoder import Decoder
from engine.models.gpt_oss import GptOssDecoder
from engine.models.latent_parts import LatentDecoder
from engine.models.packed_store import PackedStore
from engine.models.post_norm_decoder import PostNormDecoder
from engine.models.rounding import Rounding
from engine.spec.model_spec import ModelSpec


class Model(Protocol):
    spec: ModelSpec
    kernels: dict[str, str]  # op, with its weight kind if it has one -> implementation and why
    notes: list[str]  # fall-backs taken, one sentence each
    replayable: bool  # whether a decode step may be recorded on the device and replayed

    def forward(self, batch: ForwardBatch) -> Tensor:
        """-> logits [R, vocab] float32 of batch.logit_rows"""
        ...


KV_NAMES = {torch.uint8: "fp8", torch.int8: "int8"}  # of caches; see engine.kernels.scaled_cache

Builder = Callable[[ModelSpec, MappedCheckpoint, torch.device, torch.dtype, OpQuery, int], Model]

# A family of engine.spec.families -> what builds it.
BUILDERS: dict[str, Builder] = {
    "llama": Decoder,
    "mistral": Decoder,
    "qwen2": Decoder,
    "qwen3": Decoder,
    "mixtral": Decoder,
    "qwen3_moe": Decoder,
    "gemma2": Decoder,
    "gemma3_text": Decoder,
    "olmo2": PostNormDecoder,
    "olmo3": PostNormDecoder,
    "granite": Decoder,
    "phi3": Decoder,
    "glm4": Decoder,
    "glm4_moe": Decoder,
    "gpt_oss": GptOssDecoder,
    "deepseek_v2": LatentDecoder,
    "deepseek_v3": LatentDecoder,
}


def load_model(
    spec: ModelSpec,
    device: torch.device | str,
    dtype: torch.dtype,
    progress: Progress,
    *,
    max_context_tokens: int | None = None,
    kv_dtype: torch.dtype | None = None,
    activation: str = "exact",
    capabilities: frozenset[str] = frozenset(),
    rounding: Rounding | None = None,
    adapters: AdapterBank | None = None,
    packed: PackedStore | None = None,
    calibrated_kv: bool = False,
) -> Model:
    """Load a checkpoint's weights onto a device, packed for the kernels that will run it.

    Weights are mapped, never held twice: host memory stays near what the kernels keep. progress gets done and total.

    activation: "exact", or "int8" where a kernel may quantise activations
    calibrated_kv: whether a cache of bytes is written with the checkpoint's own multipliers
    adapters: what is added to projections for rows that ask for it
    packed: where packed weights of the last start are, and where this one's are kept
    rounding: what matrices are made into; None: they stay as stored
    Blocks: for as long as the disk takes
    Raises: UnsupportedFormat, ConfigError
    """
    if spec.architecture not in BUILDERS:
        raise UnsupportedFormat(f"{spec.name}: no model code for the architecture {spec.architecture}.")
    check_size(spec)
    device = torch.device(device)
    query = op_query(spec, device, dtype, kv_dtype, activation, capabilities)
    context = max_context_tokens or spec.max_context_tokens
    with reading_ahead(device) as read_ahead:
        checkpoint = MappedCheckpoint(spec, progress)
        checkpoint.rounding, checkpoint.device = rounding, device
        checkpoint.adapters = adapters
        checkpoint.packed = packed
        checkpoint.calibrated_kv = calibrated_kv
        read_ahead(checkpoint.coming())
        model = BUILDERS[spec.architecture](spec, checkpoint, device, dtype, query, context)
        checkpoint.settle()
        return model


def op_query(
    spec: ModelSpec,
    device: torch.device,
    dtype: torch.dtype,
    kv_dtype: torch.dtype | None,
    activation: str,
    capabilities: frozenset[str],
) -> OpQuery:
    """What a model asks of its kernels."""
    return OpQuery(
        device=device.type,
        dtype=_name(dtype),
        kv_dtype=_name(kv_dtype or dtype),
        head_dim=spec.layers[0].attention.head_dim,
        activation=activation,
        capabilities=capabilities,
    )


def _name(dtype: torch.dtype) -> str:
    if dtype in KV_NAMES:
        return KV_NAMES[dtype]
    return str(dtype).removeprefix("torch.")
