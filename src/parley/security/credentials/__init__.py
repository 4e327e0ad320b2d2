"""What schemes verify with: hashes of passwords, verdicts that are kept, addresses of clients."""
