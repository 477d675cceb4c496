"""load_draft_model: a WorkerConfig's second model, ready to guess. Blocks for as long as loading takes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.devices import Device
from engine.errors import DoesNotFit, UnsupportedFormat
from engine.kv.layout import PageLayout, solve_layout
from engine.messages import WorkerConfig
from engine.models import load_model
from engine.spec import read_spec
from engine.spec.model_spec import ModelSpec
from engine.speculative.draft_model import DraftModel
from engine.text import load_text

POOL_SHARE = 0.05  # of free memory, at the most, where the profile names no number of tokens


def load_draft_model(
    config: WorkerConfig,
    target: ModelSpec,
    device: Device,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    max_context_tokens: int,
    progress: Callable[[str, int, int], None],
) -> DraftModel:
    """Raises: UnsupportedFormat when its tokens are not the target's; DoesNotFit, ConfigError"""
    spec = read_spec(config.draft_model_path)
    _check_vocabulary(target, spec)
    context = min(max_context_tokens, spec.max_context_tokens)
    model = load_model(
        spec,
        device.torch_device,
        dtype,
        lambda done, total: progress("reading the draft model", done, total),
        max_context_tokens=context,
        kv_dtype=kv_dtype,
        activation=config.activation,
        capabilities=device.capabilities.names(),
    )
    layout = solve_layout(spec, bytes_per_element=kv_dtype.itemsize, page_tokens=config.page_tokens)
    return DraftModel(
        model,
        layout,
        num_large_pages=pool_pages(config, spec, layout, kv_dtype, context, device) + 1,
        kv_dtype=kv_dtype,
        device=device,
        max_context_tokens=context,
        vocab_size=spec.vocab_size,
        target_vocab_size=target.vocab_size,
        chunk_tokens=config.knobs.prefill_chunk,
    )


def pool_pages(
    config: WorkerConfig, spec: ModelSpec, layout: PageLayout, kv_dtype: torch.dtype, context: int, device: Device
) -> int:
    """Large pages for a drafter's own cache. Raises: DoesNotFit"""
    page_bytes = layout.large_page_elements * kv_dtype.itemsize
    free = device.free_bytes()
    chunk = config.knobs.prefill_chunk
    if config.kv_tokens:
        pages = layout.large_pages_for_pool(config.kv_tokens, context, chunk)
    else:
        wanted = config.knobs.max_running * layout.large_pages_for(context, chunk)
        pages = min(wanted, int(free * POOL_SHARE) // page_bytes)
    least = layout.large_pages_for(2 * layout.page_tokens)
    if not least <= pages <= free // page_bytes:
        raise DoesNotFit(
            f"The draft model {spec.name} needs {max(pages, least) * page_bytes:,} bytes for its own KV cache; "
            f"{config.device} has {free:,} free.",
            "Leave the draft model out, or lower the context or the number of users.",
        )
    return pages


def _check_vocabulary(target: ModelSpec, draft: ModelSpec) -> None:
    """Raises: UnsupportedFormat, naming the first token in which the two differ."""
    ours, theirs = load_text(target), load_text(draft)
    for token_id in range(max(ours.vocab_size, theirs.vocab_size)):
        mine, other = ours.token_bytes(token_id), theirs.token_bytes(token_id)
        if mine != other and (token_id < ours.vocab_size or other):
            raise UnsupportedFormat(
                f"{draft.name} cannot guess for {target.name}: token {token_id} is {_shown(other)} there and "
                f"{_shown(mine)} here.",
                "Choose a small model of the same family and release: it must share the tokenizer.",
            )


def _shown(token: bytes) -> str:
    return repr(token.decode("utf-8", "replace")) if token else "nothing"
