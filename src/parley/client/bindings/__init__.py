"""The client's bindings: they encode requests and decode responses, and make no decisions."""
