"""The gRPC binding, listening. It is imported only when used; ``options`` needs no gRPC."""
