"""What is in deploy/ is what a fleet needs: read, held against the real command, and run."""
