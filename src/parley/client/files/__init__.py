"""Files by reference: uploads to an agent, and downloads from the addresses that it names."""
