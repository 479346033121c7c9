"""Who calls: identity tokens, their issuers' keys, and roles."""
