"""The schema, declared once for Alembic and the few lists that are built at run time.

Statements elsewhere are literal SQL. A test dumps a migrated database and one made from this file
and proves the two equal, so a change here needs its migration and the other way round. What
SQLAlchemy cannot declare (functions, triggers) stands in `store/schema_sql.py`.
"""

from app.store.columns import metadata
from app.store.tables_attempts import (
    attempt_events,
    attempt_heartbeats,
    concurrency_holds,
    execution_attempts,
    placement_class_versions,
    placement_classes,
    runner_leases,
)
from app.store.tables_callbacks import (
    callback_cursors,
    callback_deliveries,
    callback_parked,
    callback_subscriptions,
)
from app.store.tables_objects import (
    artifact_refs,
    artifact_uploads,
    evidence_refs,
    log_streams,
    raw_log_refs,
    runner_output_refs,
)
from app.store.tables_runners import (
    runner_instances,
    runner_sessions,
    runner_statuses,
)
from app.store.tables_scheduler import (
    leader_terms,
    outbox,
    schedule_fires,
    schedules,
    sweeps,
)
from app.store.tables_service import (
    dead_letters,
    feed_epochs,
    installation,
    leaders,
    message_failures,
    processed_messages,
    removed_partitions,
    service_ticks,
    state,
)

__all__ = [
    "artifact_refs",
    "artifact_uploads",
    "attempt_events",
    "attempt_heartbeats",
    "callback_cursors",
    "callback_deliveries",
    "callback_parked",
    "callback_subscriptions",
    "concurrency_holds",
    "dead_letters",
    "evidence_refs",
    "execution_attempts",
    "feed_epochs",
    "installation",
    "leader_terms",
    "leaders",
    "log_streams",
    "message_failures",
    "metadata",
    "outbox",
    "placement_class_versions",
    "placement_classes",
    "processed_messages",
    "raw_log_refs",
    "removed_partitions",
    "runner_instances",
    "runner_leases",
    "runner_output_refs",
    "runner_sessions",
    "runner_statuses",
    "schedule_fires",
    "schedules",
    "service_ticks",
    "state",
    "sweeps",
]
