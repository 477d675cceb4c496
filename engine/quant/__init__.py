"""Quantised weights: how their bytes are read and turned into numbers. Imports nothing of the engine but errors and type sizes."""
