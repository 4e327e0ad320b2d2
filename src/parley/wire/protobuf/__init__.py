"""Protobuf messages made from schemas, and the data model in them. Needs the extra ``grpc``."""
