"""The engine that runs agents: the service of an agent, its executor, and the turns of tasks."""
