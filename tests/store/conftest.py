"""The store behind the real application, as for the API's own tests."""

from tests.api.conftest import http, open_instance, services, shared_http

__all__ = ["http", "open_instance", "services", "shared_http"]
