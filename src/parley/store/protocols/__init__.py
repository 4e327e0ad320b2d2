"""The parameters and results of task stores, and their errors."""
