"""Stored answers of the responses API: what later requests go on from."""
