"""Layers made one after the other: none is there while the next is made."""

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


def test_the_layer_that_is_held_is_all_there_is_and_goes_before_the_next_is_made() -> None:
    made: list[weakref.ref[Layer]] = []

    def make(spec: Any) -> Layer:
        assert all(layer() is None for layer in made), "a layer is still held"
        layer = Layer(spec.index)
        made.append(weakref.ref(layer))
        return layer

    layers = StreamedLayers(specs(4), make)
    assert list(layers) == []
    for index in range(4):
        layers.hold(index)
        assert [layer.index for layer in layers] == [index]
    assert len(made) == 4
    layers.let_go()
    assert len(layers) == 0
    assert made[-1]() is None
