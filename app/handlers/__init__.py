"""What commands cause, for REST routes and pushed envelopes alike."""
