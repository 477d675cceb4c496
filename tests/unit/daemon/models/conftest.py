"""A registry over a real store, and a tiny real GGUF file to import."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from daemon.events import EventLog
from daemon.models.registry import ModelRegistry
from daemon.settings import Settings
from daemon.store.session import Store


@pytest.fixture
def events(store: Store) -> EventLog:
    return EventLog(store)


@pytest.fixture
def registry(store: Store, settings: Settings, events: EventLog) -> ModelRegistry:
    return ModelRegistry(store, settings, events)


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with two layers of width 64."""
    path = tmp_path_factory.mktemp("gguf") / "Tiny-Llama.F32.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("Tiny Llama")
    writer.add_context_length(256)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(100)
    rng = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, rng.standard_normal(shape).astype(np.float32))

    add("token_embd.weight", 100, 64)
    add("output_norm.weight", 64)
    for i in range(2):
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{i}.{name}.weight", 64)
        for name, rows, columns in (
            ("attn_q", 64, 64),
            ("attn_k", 32, 64),
            ("attn_v", 32, 64),
            ("attn_output", 64, 64),
            ("ffn_gate", 128, 64),
            ("ffn_up", 128, 64),
            ("ffn_down", 64, 128),
        ):
            add(f"blk.{i}.{name}.weight", rows, columns)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
