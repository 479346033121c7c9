"""The schema's revision that this code was written for.

A constant, so that a service needs neither Alembic nor SQLAlchemy to start; a test compares it with
the newest migration.
"""

HEAD = "0010"
