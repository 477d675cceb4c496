"""StreamedLayers: a model's layers made one after the other, so that no more than one of them is held."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, overload

from engine.spec.model_spec import LayerSpec

T = TypeVar("T")


class StreamedLayers(Sequence[T], Generic[T]):
    """Owner: a decoder that streams. Holds the layer that was asked for last."""

    def __init__(self, specs: Sequence[LayerSpec], make: Callable[[LayerSpec], T]) -> None:
        self._specs = specs
        self._make = make
        self._index = -1
        self._held: T | None = None

    def __len__(self) -> int:
        return len(self._specs)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return StreamedLayers(self._specs[index], self._make)
        if index != self._index or self._held is None:
            spec = self._specs[index]
            self._held = None  # let go of it before the next one is made
            self._held, self._index = self._make(spec), index
        return self._held
