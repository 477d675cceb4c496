"""Whatever is done to a GGUF file, reading its header gives a description or one of our errors, and stays small."""

from __future__ import annotations

import struct
import tempfile
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.errors import BayardError
from engine.spec import read_spec
from engine.spec.gguf_header import read_gguf_header

MEBIBYTE = 1 << 20
INTERESTING = [0, 1, 2, 0x7F, 0x80, 0xFF, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, 1 << 63, (1 << 64) - 1]


def whole_file(folder: Path) -> bytes:
    """A valid small llama model with every kind of metadata."""
    path = folder / "whole.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", "é"])
    writer.add_array("tokenizer.ggml.token_type", [1, 2, 3])
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    shapes = {
        "token_embd.weight": (4, 32),
        "output_norm.weight": (32,),
        "blk.0.attn_norm.weight": (32,),
        "blk.0.ffn_norm.weight": (32,),
        "blk.0.attn_q.weight": (32, 32),
        "blk.0.attn_k.weight": (16, 32),
        "blk.0.attn_v.weight": (16, 32),
        "blk.0.attn_output.weight": (32, 32),
        "blk.0.ffn_gate.weight": (32, 32),
        "blk.0.ffn_up.weight": (32, 32),
        "blk.0.ffn_down.weight": (32, 32),
    }
    for name, shape in shapes.items():
        writer.add_tensor(name, np.zeros(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


with tempfile.TemporaryDirectory() as _folder:
    WHOLE = whole_file(Path(_folder))
    HEADER_BYTES = read_gguf_header(Path(_folder) / "whole.gguf").data_offset_bytes

# (where, bytes put there): a byte, a small word or a 64-bit number, mostly inside the header
edits = st.lists(
    st.tuples(
        st.one_of(st.integers(0, HEADER_BYTES - 1), st.integers(0, len(WHOLE) - 1)),
        st.one_of(
            st.binary(min_size=1, max_size=8),
            st.sampled_from(INTERESTING).map(lambda n: struct.pack("<Q", n)),
            st.sampled_from(INTERESTING[:9]).map(lambda n: struct.pack("<I", n)),
        ),
    ),
    max_size=6,
)


def read_guarded(content: bytes) -> BayardError | None:
    """Read a file with this content; anything but one of our errors, or much memory, fails the test."""
    refused: BayardError | None = None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzzed.gguf"
        path.write_bytes(content)
        tracemalloc.start()
        try:
            assert read_spec(path).name.isprintable()
        except BayardError as error:
            refused = error
        finally:
            peak_bytes = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    assert peak_bytes < 4 * MEBIBYTE, f"{peak_bytes:,} bytes to read a file of {len(content):,}"
    assert refused is None or (refused.message.isprintable() and len(str(refused)) < 2000)
    return refused


def test_whole_file_is_accepted() -> None:
    assert read_guarded(WHOLE) is None


@settings(max_examples=1500, deadline=None)
@given(edits)
@example([(8, struct.pack("<Q", (1 << 64) - 1))])
@example([(16, struct.pack("<Q", 1 << 62))])
def test_random_corruption_gives_our_error_or_a_description(changes: list[tuple[int, bytes]]) -> None:
    content = bytearray(WHOLE)
    for at, replacement in changes:
        content[at : at + len(replacement)] = replacement
    read_guarded(bytes(content))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=40))
def test_cut_off_file_with_other_bytes_after_is_refused_or_described(size: int, tail: bytes) -> None:
    read_guarded(WHOLE[:size] + tail)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_random_bytes_behind_the_magic_are_refused(tail: bytes) -> None:
    assert read_guarded(b"GGUF" + struct.pack("<I", 3) + tail) is not None


def test_each_header_byte_inverted_is_refused_or_described() -> None:
    for at in range(HEADER_BYTES):
        content = bytearray(WHOLE)
        content[at] ^= 0xFF
        read_guarded(bytes(content))
