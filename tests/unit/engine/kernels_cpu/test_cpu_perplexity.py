"""What rounding costs: perplexity of a fixed text on the real small model, against plain float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.batch import ForwardBatch, GroupMeta
from engine.kernels import registry
from engine.kv.layout import solve_layout
from engine.models import load_model
from engine.spec import read_spec
from engine.text.loading import load_text

TEXT = """The harbour town had two clocks. One stood on the church and was right twice a day; the other, on the customs
house, was looked after by an old woman who had once been a ship's engineer and who wound it every morning at six. When
the new railway came, the company asked which of the two it should set its own clocks by. The council argued for three
evenings. The priest said that a stopped clock at least never misleads the same man twice. The merchants wanted the
customs house, since their contracts were dated by it. In the end the company sent a telegraph to the observatory in the
capital, and found that the old woman's clock was four seconds slow. She was told of it the next day, while she oiled
the wheels. She nodded, opened the case, and moved the long hand herself. "Four seconds," she said, "in nineteen years.
The sea takes more than that from a ship's clock between two ports." After that the trains, the ships and the market
kept one time, and nobody looked at the church any more, except the pigeons, who had never asked what it was for.
Water is a simple substance, but its behaviour is not. When it is cooled it becomes denser, as most liquids do, until it
reaches about four degrees above freezing; then it begins to expand again. Ice is therefore lighter than the water it
forms from, and floats. Because of this, lakes freeze from the top down, and fish survive the winter in the water below.
If ice were heavier, it would sink, and lakes would fill with it from the bottom until nothing in them could live."""


def perplexity(path: Path, activation: str, kv_dtype: torch.dtype) -> float:
    spec = read_spec(path)
    tokens = load_text(spec).encode(TEXT)
    model = load_model(spec, "cpu", torch.float32, lambda done, total: None, activation=activation, kv_dtype=kv_dtype)
    layout = solve_layout(spec, bytes_per_element=kv_dtype.itemsize)
    blocks = -(-len(tokens) // layout.page_tokens)
    large = blocks // layout.groups[0].ratio + 2
    views = layout.views(torch.zeros(large * layout.large_page_elements, dtype=kv_dtype), large)
    places = torch.arange(len(tokens))
    batch = ForwardBatch(
        token_ids=torch.tensor(tokens),
        positions=places,
        query_starts=torch.tensor([0, len(tokens)], dtype=torch.int32),
        context_lens=torch.tensor([len(tokens)], dtype=torch.int32),
        logit_rows=places,
        groups=[
            GroupMeta(
                torch.arange(blocks, dtype=torch.int32).unsqueeze(0),
                places // layout.page_tokens,
                places % layout.page_tokens,
            )
        ],
        kv_views=views,
        layer_groups=[0] * len(spec.layers),
        max_query_tokens=len(tokens),
        max_context_tokens=len(tokens),
    )
    logits = model.forward(batch)
    loss = torch.nn.functional.cross_entropy(logits[:-1], batch.token_ids[1:])
    return float(loss.exp())


@pytest.fixture(scope="module")
def plain(smollm_path: Path) -> float:
    """In plain torch: weights dequantised to float32, everything computed in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "BACKENDS", ("engine.kernels.reference",))
        registry._loaded.cache_clear()
        found = perplexity(smollm_path, "exact", torch.float32)
    registry._loaded.cache_clear()
    return found


@pytest.mark.parametrize(
    ("activation", "kv_dtype", "allowed"),
    [
        ("exact", torch.float32, 1e-5),
        ("exact", torch.float16, 5e-4),
        ("exact", torch.int8, 5e-3),
        ("int8", torch.float16, 5e-3),
        ("int8", torch.bfloat16, 5e-3),
    ],
)
def test_perplexity_stays_within_the_formats_bound(
    smollm_path: Path, plain: float, activation: str, kv_dtype: torch.dtype, allowed: float
) -> None:
    assert 2 < plain < 100
    found = perplexity(smollm_path, activation, kv_dtype)
    assert abs(found / plain - 1) < allowed, f"{found:.4f} against {plain:.4f}"
