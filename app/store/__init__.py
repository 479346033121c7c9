"""SQL and nothing but SQL."""
