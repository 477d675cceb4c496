"""Guessing the next tokens and letting one step check them. Off until a plan asks for it."""

from engine.speculative.lookup import accepted, propose

__all__ = ["accepted", "propose"]
