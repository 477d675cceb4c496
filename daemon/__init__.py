"""The control plane: one asyncio process that never imports torch."""

__version__ = "0.1.0"
