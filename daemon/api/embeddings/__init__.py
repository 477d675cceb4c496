"""POST /v1/embeddings and /v1/rerank: what embedding models answer."""
