"""What a server proves: its private keys, canonical JSON, and signatures of cards."""
