"""Quantised weights: their bytes and how to read them. Imports nothing of the engine but errors and type sizes."""
