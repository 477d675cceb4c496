"""bfloat16 in Triton's interpreter, which keeps such numbers as the whole numbers of their bits."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest


def mend_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter multiply and round bfloat16 as an accelerator does. No effect where there is one.

    By itself it multiplies the bits, and cuts off in place of rounding.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    dot, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def wide(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def mended_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, wide(a), wide(b), *rest)

    def mended_cast(self: Any, source: Any, wanted: Any) -> Any:
        if source.dtype.scalar != tl.float32 or wanted.scalar != tl.bfloat16:
            return cast(self, source, wanted)
        bits = np.ascontiguousarray(source.data).view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)  # to nearest, ties to even
        return TensorHandle(np.where(np.isnan(source.data), np.uint16(0x7FC0), rounded), tl.bfloat16)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", mended_dot)
    monkeypatch.setattr(InterpreterBuilder, "cast_impl", mended_cast)
