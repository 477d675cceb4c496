"""load_rank: from a ModelSpec to one rank's share of a model."""

from __future__ import annotations

import torch

from engine.devices.upload import reading_ahead
from engine.errors import UnsupportedFormat
from engine.models.checkpoint import Progress, check_size
from engine.models.decoder import Decoder
from engine.models.loading import BUILDERS, Model, op_query
from engine.parallel.checkpoint import ShardedCheckpoint
from engine.parallel.decoder import RankDecoder
from engine.parallel.group import RankGroup
from engine.spec.model_spec import ModelSpec


def load_rank(
    spec: ModelSpec,
    group: RankGroup,
    device: torch.device | str,
    dtype: torch.dtype,
    progress: Progress,
    *,
    max_context_tokens: int | None = None,
    kv_dtype: torch.dtype | None = None,
    activation: str = "exact",
    capabilities: frozenset[str] = frozenset(),
) -> Model:
    """Load this rank's share of a checkpoint, as load_model does the whole. The model's spec is the rank's.

    Blocks: for as long as the disk takes; for no other rank
    Raises: PlanError for a degree that does not divide the model, UnsupportedFormat, ConfigError
    """
    if BUILDERS.get(spec.architecture) is not Decoder:
        raise UnsupportedFormat(
            f"{spec.name}: models of the architecture {spec.architecture} are not split over ranks.",
            "Run it on one device, or as several replicas.",
        )
    check_size(spec)
    device = torch.device(device)
    query = op_query(spec, device, dtype, kv_dtype, activation, capabilities)
    context = max_context_tokens or spec.max_context_tokens
    with reading_ahead(device) as read_ahead:
        checkpoint = ShardedCheckpoint(spec, group.shard, progress)
        read_ahead(checkpoint.coming())
        return RankDecoder(spec, checkpoint, group, device, dtype, query, context)
