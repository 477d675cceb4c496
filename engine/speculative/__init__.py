"""Guessing the next tokens and letting one step check them. Off until a plan asks for it."""

from engine.speculative.drafter import Drafter, accepted
from engine.speculative.lookup import LookupDrafter, SuffixIndex
from engine.speculative.speculation import Speculation

__all__ = ["Drafter", "LookupDrafter", "Speculation", "SuffixIndex", "accepted"]
