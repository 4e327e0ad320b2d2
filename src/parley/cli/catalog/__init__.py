"""What the commands of ``parley catalog`` do."""
