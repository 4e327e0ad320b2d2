"""The server's private keys, canonical JSON, and signatures of cards."""
