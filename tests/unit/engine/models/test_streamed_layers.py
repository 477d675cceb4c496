"""Layers made one after the other: none is held while the next is made, not by a loop either."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any, cast

from engine.models.streamed_layers import StreamedLayers
from engine.spec.model_spec import LayerSpec


class Layer:
    def __init__(self, index: int) -> None:
        self.index = index


def specs(count: int) -> list[LayerSpec]:
    return [cast(LayerSpec, SimpleNamespace(index=index)) for index in range(count)]


def test_a_loop_holds_no_layer_while_the_next_is_made() -> None:
    made: list[weakref.ref[Layer]] = []

    def make(spec: Any) -> Layer:
        assert all(layer() is None for layer in made), "a layer is still held"
        layer = Layer(spec.index)
        made.append(weakref.ref(layer))
        return layer

    layers = StreamedLayers(specs(4), make)
    seen = []
    for number, layer in enumerate(layers):
        seen.append((number, layer.index))
    assert seen == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert len(made) == 4


def test_a_layer_asked_for_again_is_made_again_only_after_another() -> None:
    made: list[int] = []

    def make(spec: Any) -> Layer:
        made.append(spec.index)
        return Layer(spec.index)

    layers = StreamedLayers(specs(3), make)
    assert [layers[0].index, layers[0].index, layers[2].index, layers[0].index] == [0, 0, 2, 0]
    assert made == [0, 2, 0]
