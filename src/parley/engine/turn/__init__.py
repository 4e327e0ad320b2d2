"""The turns of one task: started, run, written to the log, finished or released."""
