"""How a registry is reached: REST with OpenAPI, a page for people, an A2A agent, the process."""
