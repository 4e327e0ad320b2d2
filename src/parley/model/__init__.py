"""The A2A 1.0 data model, its errors, its operations, and the service interface."""
