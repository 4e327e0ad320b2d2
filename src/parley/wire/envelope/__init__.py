"""The envelope protocol as JSON: messages, cards, signatures."""
