"""The gRPC server. It is imported only when used; ``options`` does not need gRPC."""
