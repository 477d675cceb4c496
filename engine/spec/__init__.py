"""What a checkpoint is, read from its headers alone: no torch, no tensor data."""
