"""The ways to make one agent of several, one file each."""
