"""The settings of the commands, and where their values come from."""
