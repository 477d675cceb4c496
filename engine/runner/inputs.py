"""Turning a step's chunks into the tensors of a ForwardBatch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.batch import ForwardBatch, GroupMeta
from engine.kv.layout import PageLayout
from engine.scheduler.scheduler import ScheduledChunk


def build_batch(
    chunks: Sequence[ScheduledChunk],
    layout: PageLayout,
    kv_views: Sequence[torch.Tensor],
    device: torch.device,
) -> ForwardBatch:
    """One row a token, chunk after chunk; logits are wanted for the last row of chunks that sample."""
    token_ids: list[int] = []
    positions: list[int] = []
    starts = [0]
    contexts: list[int] = []
    logit_rows: list[int] = []
    for chunk in chunks:
        end = chunk.start + chunk.num_tokens
        token_ids += chunk.request.token_ids[chunk.start : end]
        positions += range(chunk.start, end)
        starts.append(len(token_ids))
        contexts.append(end)
        if chunk.samples:
            logit_rows.append(len(token_ids) - 1)
    where = torch.tensor(positions, dtype=torch.int64)
    rows = torch.repeat_interleave(
        torch.arange(len(chunks)), torch.tensor([chunk.num_tokens for chunk in chunks]), output_size=len(positions)
    )
    blocks = where // layout.page_tokens
    groups = []
    for group in range(len(layout.groups)):
        tables = [chunk.request.pages.tables[group] for chunk in chunks]
        width = max(map(len, tables))
        table = torch.tensor([t + [0] * (width - len(t)) for t in tables], dtype=torch.int32)
        pages = table[rows, blocks].long()
        groups.append(GroupMeta(table.to(device), pages.to(device), (where % layout.page_tokens).to(device)))
    return ForwardBatch(
        token_ids=torch.tensor(token_ids, dtype=torch.int64, device=device),
        positions=where.to(device),
        query_starts=torch.tensor(starts, dtype=torch.int32, device=device),
        context_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
        logit_rows=torch.tensor(logit_rows, dtype=torch.int64, device=device),
        groups=groups,
        kv_views=kv_views,
        layer_groups=layout.layer_groups,
        max_query_tokens=max(chunk.num_tokens for chunk in chunks),
        max_context_tokens=max(contexts),
    )
