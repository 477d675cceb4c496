"""The OpenAI contract: what its clients send, and what they expect back."""
