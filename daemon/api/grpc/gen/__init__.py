"""Made from bayard.proto; see daemon.api.grpc.generate."""
