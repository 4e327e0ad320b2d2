"""The gRPC binding, listening. It is imported only when it is used."""
