"""execution-plane-service: the record of every technical execution."""
