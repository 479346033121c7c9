"""Sending events to receivers: addresses that may be called, signatures, targets."""
