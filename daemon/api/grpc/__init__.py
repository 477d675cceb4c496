"""The gRPC API: bayard.v1.Inference, health and reflection."""
