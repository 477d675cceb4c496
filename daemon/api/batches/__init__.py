"""/v1/files and /v1/batches: offline jobs, as OpenAI's clients ask for them."""
