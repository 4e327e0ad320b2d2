"""The files of deploy/ suit a fleet: they are parsed, compared with the real command, and run."""
