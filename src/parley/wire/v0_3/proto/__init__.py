"""The proto of version 0.3: what its HTTP+JSON bodies and gRPC messages hold."""
