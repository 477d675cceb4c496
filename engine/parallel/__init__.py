"""Tensor parallelism: one model computed by several ranks, each holding a share of every layer."""
