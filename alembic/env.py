"""Runs the migrations, either for `app.store.migrate` (which passes a connection) or by hand."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from app.store.migrate import after_step, dsn_from_environment, run_with_connection
from app.store.tables import metadata


def migrate(connection: Connection) -> None:
    """Run the chosen migrations in one transaction each."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        transaction_per_migration=True,
        on_version_apply=after_step,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    migrate(given)
else:
    run_with_connection(dsn_from_environment(), migrate)
