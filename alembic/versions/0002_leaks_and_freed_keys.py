"""What a lease's holder leaked is noted once; an operator's freeing of a key is an event.

Revision ID: 0002
Revises: 0001
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BEFORE = (
    "'created', 'leased', 'started', 'heartbeat', 'artifact_created', 'succeeded', 'failed', "
    "'cancelled', 'timed_out', 'lost', 'cancel_requested', 'lease_expired', 'lease_released', "
    "'lease_revoked', 'late_result', 'output_recorded', 'evidence_recorded', 'secret_masked', "
    "'log_truncated', 'legal_hold_set', 'legal_hold_lifted'"
)


def _allow(types: str) -> None:
    """Replace the list of event types; validated apart, so that no writer waits for the scan."""
    op.execute("ALTER TABLE attempt_events DROP CONSTRAINT attempt_events_event_type_check")
    op.execute(
        "ALTER TABLE attempt_events ADD CONSTRAINT attempt_events_event_type_check "
        f"CHECK (event_type IN ({types})) NOT VALID"
    )
    op.execute("ALTER TABLE attempt_events VALIDATE CONSTRAINT attempt_events_event_type_check")


def upgrade() -> None:
    """A wider list of events, and a column that is NULL for nearly every lease."""
    op.execute("ALTER TABLE runner_leases ADD COLUMN masked TEXT[]")
    _allow(f"{BEFORE}, 'key_freed'")


def downgrade() -> None:
    """Back to the narrower list; events of the new type go with it."""
    op.execute("DELETE FROM attempt_events WHERE event_type = 'key_freed'")
    _allow(BEFORE)
    op.execute("ALTER TABLE runner_leases DROP COLUMN masked")
