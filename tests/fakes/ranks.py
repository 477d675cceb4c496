"""Ranks as processes of their own, for tests: each runs one function of this module and leaves its answer in a file."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engine.batch import ForwardBatch, GroupMeta
from engine.kv.layout import solve_layout
from engine.models import Model, load_model
from engine.parallel.group import RankGroup
from engine.parallel.loading import load_rank
from engine.parallel.shards import Shard
from engine.spec import read_spec

LIMIT_S = 60.0
EXCHANGE_S = 4.0
PAGE_TOKENS = 16
Work = Callable[..., Any]


def run_ranks(
    work: Work, ranks: list[Shard], folder: Path, *args: Any, device: str = "cpu", meet_s: float = 40.0
) -> list[Any]:
    """What work(group, *args) gave in each rank's process; the traceback where it raised."""
    context = multiprocessing.get_context("spawn")
    results = [folder / f"rank-{shard.rank}.pt" for shard in ranks]
    processes = [
        context.Process(target=_rank, args=(work, shard, folder / "meeting", device, meet_s, result, args))
        for shard, result in zip(ranks, results, strict=True)
    ]
    for process in processes:
        process.start()
    until_mono = time.monotonic() + LIMIT_S
    for process in processes:
        process.join(max(until_mono - time.monotonic(), 0.0))
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join()
    return [torch.load(result, weights_only=False) if result.exists() else "no answer" for result in results]


def _rank(
    work: Work, shard: Shard, meeting: Path, device: str, meet_s: float, result: Path, args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    try:
        group = RankGroup.join(shard, meeting, rank_device(shard, device), meet_s=meet_s, exchange_s=EXCHANGE_S)
        found = work(group, *args)
        group.close()
    except Exception:  # noqa: BLE001 - the border of a rank: the test shows why
        found = traceback.format_exc()
    torch.save(found, result)


def rank_device(shard: Shard, kind: str) -> torch.device:
    return torch.device(kind, shard.rank) if kind == "cuda" else torch.device(kind)


def exchanged(group: RankGroup) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum and gathering of what is different on each rank."""
    mine = torch.arange(6.0).view(2, 3) + 10 * group.shard.rank
    return group.all_reduce(mine.clone()), group.all_gather(mine)


def leaves_early(group: RankGroup) -> torch.Tensor | None:
    """The last rank goes after one sum, without a word."""
    group.all_reduce(torch.ones(4))
    if group.shard.rank == group.shard.degree - 1:
        return None
    return group.all_reduce(torch.ones(4))


def rank_logits(
    group: RankGroup, path: str, prompt: list[int], device: str = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Logits of every token of a prompt, and the shape of a layer's pages."""
    model = load_rank(read_spec(path), group, rank_device(group.shard, device), dtype, lambda done, total: None)
    return prompt_logits(model, prompt, rank_device(group.shard, device), dtype)


def whole_logits(path: str, prompt: list[int], device: str = "cpu", dtype: torch.dtype = torch.float32) -> torch.Tensor:
    model = load_model(read_spec(path), device, dtype, lambda done, total: None)
    return prompt_logits(model, prompt, torch.device(device), dtype)[0]


def prompt_logits(
    model: Model, prompt: list[int], device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, tuple[int, ...]]:
    """All but the last token in one step, then that one: pages are written and read back as in real use."""
    layout = solve_layout(model.spec, bytes_per_element=dtype.itemsize, page_tokens=PAGE_TOKENS)
    num_large = sum(-(-(len(prompt) // PAGE_TOKENS + 1) // group.ratio) for group in layout.groups)
    buffer = torch.full((num_large * layout.large_page_elements,), torch.nan, dtype=dtype, device=device)
    views = layout.views(buffer, num_large)
    tables, first_large = [], 0
    for group in layout.groups:
        count = -(-(len(prompt) // PAGE_TOKENS + 1) // group.ratio)
        tables.append(torch.arange(first_large * group.ratio, (first_large + count) * group.ratio, dtype=torch.int32))
        first_large += count
    cut = len(prompt) - 1
    parts = [
        model.forward(_batch(prompt[begin:end], begin, tables, views, layout.layer_groups, device))
        for begin, end in ((0, cut), (cut, len(prompt)))
    ]
    return torch.cat(parts).cpu(), tuple(views[0].shape)


def _batch(
    tokens: list[int],
    begin: int,
    tables: list[torch.Tensor],
    views: list[torch.Tensor],
    layer_groups: tuple[int, ...],
    device: torch.device,
) -> ForwardBatch:
    positions = torch.arange(begin, begin + len(tokens))
    groups = [
        GroupMeta(
            table.unsqueeze(0).to(device),
            table[positions // PAGE_TOKENS].long().to(device),
            (positions % PAGE_TOKENS).to(device),
        )
        for table in tables
    ]
    end = begin + len(tokens)
    return ForwardBatch(
        token_ids=torch.tensor(tokens, device=device),
        positions=positions.to(device),
        query_starts=torch.tensor([0, len(tokens)], dtype=torch.int32, device=device),
        context_lens=torch.tensor([end], dtype=torch.int32, device=device),
        logit_rows=torch.arange(len(tokens), device=device),
        groups=groups,
        kv_views=views,
        layer_groups=list(layer_groups),
        max_query_tokens=len(tokens),
        max_context_tokens=end,
    )
