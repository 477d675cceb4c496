"""StreamedLayers: a model's layers made one after the other, so that no more than one of them is held.

Who goes through them is given a stand-in, which answers for the layer whose turn it is: a loop's own variable would
hold the last layer while the next one is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, cast, overload

from engine.spec.model_spec import LayerSpec

T = TypeVar("T")


class _Turn:
    """The layer that is held, whichever it is."""

    def __init__(self, layers: StreamedLayers[Any]) -> None:
        self._layers = layers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layers.held, name)


class StreamedLayers(Sequence[T], Generic[T]):
    """Owner: a decoder that streams. Holds the layer that was asked for last."""

    def __init__(self, specs: Sequence[LayerSpec], make: Callable[[LayerSpec], T]) -> None:
        self._specs = specs
        self._make = make
        self._index = -1
        self._held: T | None = None

    @property
    def held(self) -> T:
        assert self._held is not None
        return self._held

    def __len__(self) -> int:
        return len(self._specs)

    def __iter__(self) -> Iterator[T]:
        turn = cast(T, _Turn(self))
        for index in range(len(self)):
            self[index]
            yield turn

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
