"""The API's documentation, served by the process itself."""

from __future__ import annotations

from fastapi import FastAPI


def add_docs(app: FastAPI) -> None:
    """Add the pages."""
