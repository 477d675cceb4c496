"""load_text: a checkpoint's text side, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from engine.spec.model_spec import CheckpointFormat, ModelSpec
from engine.text.gguf_tokenizer import parts_from_gguf
from engine.text.gguf_wordpiece import KIND, parts_from_gguf_wordpiece
from engine.text.hf_tokenizer import parts_from_folder
from engine.text.pipeline import TextPipeline


def load_text(spec: ModelSpec, metadata: Mapping[str, object] | None = None) -> TextPipeline:
    """The tokenizer and chat template of a checkpoint.

    metadata is a GGUF header that was read already; without it the file is read again.
    Raises: UnsupportedFormat
    Blocks: reads files, and builds the vocabulary for up to a second or two
    """
    if spec.format is CheckpointFormat.HF:
        parts = parts_from_folder(Path(spec.path), eos_token_ids=spec.eos_token_ids)
        if spec.pooling is None:
            return TextPipeline(parts)
        return TextPipeline(parts, prompts=dict(spec.pooling.prompts), default_prompt=spec.pooling.default_prompt)
    if metadata is None:
        from engine.spec.gguf_header import read_gguf_header

        metadata = read_gguf_header(Path(spec.path)).metadata
    if metadata.get("tokenizer.ggml.model") == KIND:
        return TextPipeline(parts_from_gguf_wordpiece(metadata, Path(spec.path).name))
    return TextPipeline(parts_from_gguf(metadata, architecture=spec.architecture, source=Path(spec.path).name))
