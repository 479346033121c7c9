"""The store behind the real application, as for the API's own tests."""

from tests.api.conftest import database_url, http, open_instance, services, shared_http, sweeper

__all__ = ["database_url", "http", "open_instance", "services", "shared_http", "sweeper"]
