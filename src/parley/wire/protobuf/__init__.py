"""The data model as protobuf messages, from tables of facts."""
