"""Made from the protos; see daemon.api.grpc.generate."""
