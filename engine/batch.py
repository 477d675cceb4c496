"""ForwardBatch: what one engine step gives a model. Built by engine.runner, read by engine.layers and engine.models.

A step holds S sequences with T new tokens between them, sequence after sequence. A decode adds one token, a prefill
chunk several. KV pages of layer i are a strided view of one flat buffer (see engine.kv.layout):

Fields marked "index" are int64 on a CPU and int32 on an accelerator.

    view[page, 0 for K | 1 for V, kv_head, token in page, head_dim]      stride of `page` is the group's page stride
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class GroupMeta:
    """Page addresses of one page group (the layers of one attention kind share it)."""

    block_tables: torch.Tensor  # [S, max_blocks] int32: page ids of a sequence in token order; the tail is 0-padded
    write_pages: torch.Tensor  # [T] index: the page each new token's K and V go to
    write_offsets: torch.Tensor  # [T] index: ... and its place in that page


@dataclass(slots=True)
class ForwardBatch:
    token_ids: torch.Tensor  # [T] index
    positions: torch.Tensor  # [T] index: place in the sequence, 0-based
    query_starts: torch.Tensor  # [S + 1] int32: first row of each sequence in [T]
    context_lens: torch.Tensor  # [S] int32: tokens with KV after this step, new ones included
    logit_rows: torch.Tensor  # [R] index: rows of [T] whose logits are wanted
    groups: Sequence[GroupMeta]
    kv_views: Sequence[torch.Tensor]  # one a layer, see the module's docstring
    layer_groups: Sequence[int]  # layer index -> index into groups
    max_query_tokens: int  # host-side copies, so that no kernel has to ask the device
    max_context_tokens: int
    adapters: torch.Tensor | None = None  # [T] int64: the adapter of each token, -1 for none; None: all have none

    @property
    def num_tokens(self) -> int:
        return int(self.token_ids.shape[0])

    @property
    def num_sequences(self) -> int:
        return int(self.context_lens.shape[0])
