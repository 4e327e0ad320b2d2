"""From a REQUEST to the call of an agent, and from its answer to RESPONSEs and EVENTs."""
