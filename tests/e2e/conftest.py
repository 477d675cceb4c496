"""Daemons of these tests keep no packed weights: each has a folder of its own, which no second start would find."""

from __future__ import annotations

import os

os.environ.setdefault("BAYARD_WORKERS_PACKED_BYTES", "0")
