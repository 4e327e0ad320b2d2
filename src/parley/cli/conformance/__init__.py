"""What the commands of ``parley conformance`` do."""
