"""Edges over HTTP: routes, push, problems."""
