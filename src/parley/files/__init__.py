"""Files by reference: bytes that are too large for a message, on disk or in S3."""
