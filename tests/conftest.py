"""Fixtures every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Before anything imports triton: without an accelerator its kernels run in the interpreter, on CPU tensors.
if not any(Path("/dev").glob("nvidia[0-9]*")):
    os.environ.setdefault("TRITON_INTERPRET", "1")

ROOT = Path(__file__).resolve().parent.parent
SMOLLM_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def smollm_path() -> Path:
    """The small real model: $BAYARD_TEST_GGUF, else what `make test` fetched into .cache/models."""
    named = os.environ.get("BAYARD_TEST_GGUF")
    path = Path(named) if named else ROOT / ".cache" / "models" / SMOLLM_FILE
    if not path.is_file():
        pytest.skip(f"{path.name} is not there: run `make model`, or set BAYARD_TEST_GGUF")
    return path


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """The small real encoder's folder: $BAYARD_TEST_ENCODER, else what `make encoder` fetched into .cache/models."""
    named = os.environ.get("BAYARD_TEST_ENCODER")
    path = Path(named) if named else ROOT / ".cache" / "models" / "all-minilm-l6-v2"
    if not (path / "config.json").is_file():
        pytest.skip(f"{path} is not there: run `make encoder`, or set BAYARD_TEST_ENCODER")
    return path
