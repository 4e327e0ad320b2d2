"""Version 1.0 of the protocol, whose objects are the data model."""
