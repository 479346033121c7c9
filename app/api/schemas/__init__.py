"""Answer bodies by audience."""
