"""The interfaces of a registry: REST with OpenAPI, a web page, an A2A agent, and its process."""
