"""What a checkpoint is, read from its headers alone: no torch, no tensor data."""

from engine.spec.gguf_header import GgufHeader, read_gguf_header
from engine.spec.model_spec import ModelSpec
from engine.spec.reader import read_spec

__all__ = ["GgufHeader", "ModelSpec", "read_gguf_header", "read_spec"]
