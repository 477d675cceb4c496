"""Ollama's contract, for tools that speak only that: /api/chat, /api/generate, /api/embed and what goes with them."""
