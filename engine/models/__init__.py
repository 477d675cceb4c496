"""Model families over the layers, and loading them."""

from engine.models.loading import Model, load_model

__all__ = ["Model", "load_model"]
