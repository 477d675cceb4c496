"""StreamedLayers: a model's layers of which one is there at a time, whichever is held."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, overload

from engine.spec.model_spec import LayerSpec

T = TypeVar("T")


class StreamedLayers(Sequence[T], Generic[T]):
    """Who goes through them meets the layer that is held, and none where none is. Owner: a decoder that streams."""

    def __init__(self, specs: Sequence[LayerSpec], make: Callable[[LayerSpec], T]) -> None:
        self._specs = specs
        self._make = make
        self._held: tuple[T, ...] = ()

    def hold(self, index: int) -> None:
        """Make that layer; the one before is let go of first. Blocks: for as long as reading it takes"""
        self.let_go()
        self._held = (self._make(self._specs[index]),)

    def let_go(self) -> None:
        self._held = ()

    def __len__(self) -> int:
        return len(self._held)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._held[index]
