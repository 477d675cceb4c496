"""What a rank holds: every head, column and row by exactly one rank, or by the ranks that share it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.errors import PlanError, UnsupportedFormat
from engine.kv.layout import solve_layout
from engine.parallel.shards import Shard, check_degree, for_rank, nearest_degree, shard_of_process, share_of
from engine.spec.model_spec import AttentionKind, MlpKind, ModelSpec
from tests.fakes.engine_models import attention, spec_of


def spec(heads: int, kv_heads: int, columns: int, vocab: int = 97) -> ModelSpec:
    made = spec_of(*[replace(attention(heads=heads, dim=16), num_kv_heads=kv_heads)] * 2, vocab=vocab)
    layers = tuple(replace(layer, mlp=replace(layer.mlp, intermediate_size=columns)) for layer in made.layers)
    return replace(made, layers=layers)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "degree"),
    [(32, 8, 1), (32, 8, 2), (32, 8, 8), (32, 8, 16), (32, 8, 32), (9, 3, 3), (8, 1, 4)],
)
def test_shares_cover_the_model_in_order(heads: int, kv_heads: int, degree: int) -> None:
    model = spec(heads, kv_heads, columns=64 * degree, vocab=101)
    shares = [share_of(model, Shard(rank, degree)) for rank in range(degree)]
    for layer in range(2):
        held = [share.layers[layer] for share in shares]
        assert [head for share in held for head in share.heads] == list(range(heads))
        assert [column for share in held for column in share.mlp_columns] == list(range(64 * degree))
        for rank, share in enumerate(held):
            assert list(share.kv_heads) == sorted({head * kv_heads // heads for head in share.heads})
            assert list(share.kv_holders) == [r for r, other in enumerate(held) if other.kv_heads == share.kv_heads]
            assert rank in share.kv_holders
            # kernels map a rank's own query heads to its own KV heads evenly
            group = len(share.heads) // len(share.kv_heads)
            for i, head in enumerate(share.heads):
                assert share.kv_heads[i // group] == head * kv_heads // heads
    assert [row for share in shares for row in share.vocab_rows] == list(range(101))
    assert len({len(share.vocab_rows) for share in shares}) <= 2


def test_pages_of_a_rank_hold_its_kv_heads_alone() -> None:
    model = spec(32, 8, 64)
    whole = solve_layout(model, bytes_per_element=2, page_tokens=16)
    quarter = solve_layout(for_rank(model, Shard(3, 4)), bytes_per_element=2, page_tokens=16)
    assert quarter.groups[0].num_kv_heads == 2
    assert quarter.groups[0].layer_elements * 4 == whole.groups[0].layer_elements
    assert for_rank(model, Shard(0, 1)) == model


@pytest.mark.parametrize(
    ("model", "degree", "what", "nearest"),
    [
        (spec(9, 3, 1536), 2, "9 query heads", 1),
        (spec(9, 3, 1536), 4, "9 query heads", 3),
        (spec(12, 4, 96), 6, "4 KV heads", 4),
        (spec(32, 8, 100), 8, "100 MLP columns", 4),
        (spec(8, 8, 64), 16, "8 query heads", 8),
    ],
)
def test_degree_that_does_not_divide_is_refused_with_the_nearest(
    model: ModelSpec, degree: int, what: str, nearest: int
) -> None:
    with pytest.raises(PlanError, match=f"has {what} in layer 0; {degree} ranks cannot") as refused:
        check_degree(model, degree)
    assert refused.value.hint == f"Use {nearest} ranks, the nearest number that can."
    check_degree(model, nearest_degree(model, degree))


@pytest.mark.parametrize(("rank", "degree"), [(-1, 2), (2, 2), (0, 0)])
def test_rank_that_is_none_is_refused(rank: int, degree: int) -> None:
    with pytest.raises(PlanError, match=f"rank {rank} of {degree} is no rank"):
        Shard(rank, degree)


def test_no_ranks_are_refused() -> None:
    with pytest.raises(PlanError, match="cannot be computed by 0 ranks"):
        check_degree(spec(8, 8, 64), 0)


def test_layers_that_are_not_split_are_refused() -> None:
    model = spec(8, 8, 64)
    layer = model.layers[1]
    for changed, what in (
        (replace(layer, attention=replace(layer.attention, kind=AttentionKind.LATENT)), "latent attention"),
        (replace(layer, attention=replace(layer.attention, qk_norm_whole=True)), "one norm over all heads"),
        (replace(layer, mlp=replace(layer.mlp, kind=MlpKind.EXPERTS)), "experts"),
    ):
        with pytest.raises(UnsupportedFormat, match=f"has {what} in layer 1"):
            check_degree(replace(model, layers=(model.layers[0], changed)), 2)


@pytest.mark.parametrize(("sequence", "tensor"), [(1, 4), (4, 1), (2, 2), (2, 4)])
def test_process_holds_the_same_heads_whether_tokens_are_split_or_not(sequence: int, tensor: int) -> None:
    model = spec(32, 32, 64)
    for process in range(sequence * tensor):
        s, t = divmod(process, tensor)
        shard_heads = share_of(model, Shard(t, tensor)).layers[0].heads
        part = len(shard_heads) // sequence
        after_exchange = shard_heads[s * part : (s + 1) * part]
        assert share_of(model, shard_of_process(process, sequence, tensor)).layers[0].heads == after_exchange
