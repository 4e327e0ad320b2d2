"""Language models: the loop that calls their tools, and what a turn shows of a run."""
