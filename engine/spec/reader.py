"""Where reading a checkpoint starts: which format a path is."""

from __future__ import annotations

from pathlib import Path

from engine.errors import UnsupportedFormat
from engine.spec.adapter_spec import is_adapter
from engine.spec.gguf_checkpoint import gguf_spec
from engine.spec.gguf_header import is_gguf
from engine.spec.hf_checkpoint import hf_spec
from engine.spec.model_spec import ModelSpec
from engine.spec.place import require_plain


def read_spec(path: str | Path) -> ModelSpec:
    """Describe the checkpoint at a path: a GGUF file, or a folder with config.json and safetensors files.

    Raises: NotFound when nothing is there; UnsupportedFormat when it cannot be served, with the reason; ConfigError
    Blocks: for the headers only, some ten milliseconds
    """
    path = Path(path)
    require_plain(path)
    if is_adapter(path):
        raise UnsupportedFormat(
            f"{path.name} is an adapter and runs on its base alone.",
            "Import it after its base, and plan the base: its adapters come along.",
        )
    if path.is_dir():
        return hf_spec(path)
    if is_gguf(path) or path.suffix == ".gguf":
        return gguf_spec(path)
    if path.name == "config.json" or path.suffix == ".safetensors":
        raise UnsupportedFormat(f"{path.name} is one file of a checkpoint.", f"Import its folder: {path.parent}")
    raise UnsupportedFormat(
        f"{path.name} is neither a GGUF file nor a folder with config.json.",
        "Import a .gguf file, or a Hugging Face folder with safetensors weights.",
    )
