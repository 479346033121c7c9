"""The one table of what may happen to an attempt and to a lease.

SQL guards, the schema's CHECKs and triggers, the API's enums and the diagram in the documentation
derive from here; a test proves that they agree.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Status(StrEnum):
    """Status of an attempt. It moves forward only; the last five are terminal."""

    QUEUED = "queued"
    LEASED = "leased"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    LOST = "lost"


TRANSITIONS: Final = MappingProxyType(
    {
        Status.QUEUED: frozenset({Status.LEASED, Status.CANCELLED}),
        Status.LEASED: frozenset({Status.RUNNING, Status.LOST}),
        Status.RUNNING: frozenset(
            {Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.TIMED_OUT, Status.LOST}
        ),
        Status.SUCCEEDED: frozenset[Status](),
        Status.FAILED: frozenset[Status](),
        Status.CANCELLED: frozenset[Status](),
        Status.TIMED_OUT: frozenset[Status](),
        Status.LOST: frozenset[Status](),
    }
)

TERMINAL: Final = tuple(status for status in Status if not TRANSITIONS[status])
OPEN: Final = tuple(status for status in Status if TRANSITIONS[status])


class LeaseStatus(StrEnum):
    """Status of a lease: active until its one end."""

    ACTIVE = "active"
    RELEASED = "released"
    EXPIRED = "expired"
    REVOKED = "revoked"


LEASE_TRANSITIONS: Final = MappingProxyType(
    {
        LeaseStatus.ACTIVE: frozenset(
            {LeaseStatus.RELEASED, LeaseStatus.EXPIRED, LeaseStatus.REVOKED}
        ),
        LeaseStatus.RELEASED: frozenset[LeaseStatus](),
        LeaseStatus.EXPIRED: frozenset[LeaseStatus](),
        LeaseStatus.REVOKED: frozenset[LeaseStatus](),
    }
)


class EventType(StrEnum):
    """One line of an attempt's timeline."""

    CREATED = "created"
    LEASED = "leased"
    STARTED = "started"
    HEARTBEAT = "heartbeat"
    ARTIFACT_CREATED = "artifact_created"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    CANCEL_REQUESTED = "cancel_requested"
    LEASE_EXPIRED = "lease_expired"
    LEASE_RELEASED = "lease_released"
    LEASE_REVOKED = "lease_revoked"
    LATE_RESULT = "late_result"
    OUTPUT_RECORDED = "output_recorded"
    EVIDENCE_RECORDED = "evidence_recorded"
    SECRET_MASKED = "secret_masked"  # noqa: S105 - the name of an event
    LOG_TRUNCATED = "log_truncated"
    LEGAL_HOLD_SET = "legal_hold_set"
    LEGAL_HOLD_LIFTED = "legal_hold_lifted"
    KEY_FREED = "key_freed"


EVENT_OF_MOVE: Final = MappingProxyType(
    {
        Status.QUEUED: EventType.CREATED,
        Status.LEASED: EventType.LEASED,
        Status.RUNNING: EventType.STARTED,
        Status.SUCCEEDED: EventType.SUCCEEDED,
        Status.FAILED: EventType.FAILED,
        Status.CANCELLED: EventType.CANCELLED,
        Status.TIMED_OUT: EventType.TIMED_OUT,
        Status.LOST: EventType.LOST,
    }
)


class Outcome(StrEnum):
    """How a runner may say that its work ended; each is a status of the same name."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


class FailureCategory(StrEnum):
    """Why an attempt did not succeed."""

    VALIDATION = "validation"
    RUNNER_UNAVAILABLE = "runner_unavailable"
    TARGET_UNREACHABLE = "target_unreachable"
    PERMISSION_DENIED = "permission_denied"
    COMMAND_FAILED = "command_failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    HEARTBEAT_LOST = "heartbeat_lost"
    INTERNAL = "internal"


FORCED_CATEGORY: Final = MappingProxyType(
    {Outcome.CANCELLED: FailureCategory.CANCELLED, Outcome.TIMED_OUT: FailureCategory.TIMEOUT}
)
"""Outcomes whose category follows from their name."""


class RunnerKind(StrEnum):
    """What a runner is made for; fixed by the prefix of a job type."""

    ANSIBLE = "ansible"
    KUBERNETES = "kubernetes"
    HELM = "helm"
    OPENTOFU = "opentofu"
    SSH = "ssh"
    VERIFICATION = "verification"


KIND_OF_PREFIX: Final = MappingProxyType(
    {
        "ansible": RunnerKind.ANSIBLE,
        "kubernetes": RunnerKind.KUBERNETES,
        "helm": RunnerKind.HELM,
        "opentofu": RunnerKind.OPENTOFU,
        "ssh": RunnerKind.SSH,
        "verify": RunnerKind.VERIFICATION,
    }
)
"""First word of a job type to the kind of runner that can do it."""

JOB_TYPE_PATTERN: Final = "^(ansible|kubernetes|helm|opentofu|ssh|verify)([.][a-z0-9_]{1,48}){1,4}$"


class Phase(StrEnum):
    """What a runner is doing just now."""

    PULLING_ARTIFACTS = "pulling_artifacts"
    RESOLVING_SECRETS = "resolving_secrets"
    EXECUTING = "executing"
    UPLOADING_ARTIFACTS = "uploading_artifacts"
    COMPLETING = "completing"


class RunnerStatus(StrEnum):
    """What a runner reports of itself, or what is shown of it."""

    READY = "ready"
    BUSY = "busy"
    DRAINING = "draining"
    UNHEALTHY = "unhealthy"
    OFFLINE = "offline"


class LogStream(StrEnum):
    """The streams of a lease's log."""

    STDOUT = "stdout"
    STDERR = "stderr"
    EVENT_STREAM = "event_stream"
    SYSTEM = "system"


class OutputType(StrEnum):
    """The form of an output."""

    JSON = "json"
    YAML = "yaml"
    TEXT = "text"
    ARCHIVE = "archive"
    BINARY = "binary"
    RESOURCE_REFS = "resource_refs"
    EVIDENCE_BUNDLE = "evidence_bundle"


class EvidenceType(StrEnum):
    """The form of an evidence."""

    ASSERTION = "assertion"
    PROBE = "probe"
    LOG_EXCERPT = "log_excerpt"
    RESOURCE_SNAPSHOT = "resource_snapshot"
    SIGNED_REPORT = "signed_report"


class EvidenceStatus(StrEnum):
    """What an evidence shows."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"


class RetentionClass(StrEnum):
    """How long an artifact is kept."""

    SHORT = "short"
    NORMAL = "normal"
    LONG = "long"
    LEGAL_HOLD = "legal_hold"


class ArtifactState(StrEnum):
    """Whether an artifact may be pointed at and read."""

    VERIFYING = "verifying"
    READY = "ready"
    REMOVING = "removing"


class UploadMethod(StrEnum):
    """How the body of an artifact comes into the store."""

    SINGLE = "single"
    PARTS = "parts"
    KNOWN = "known"


class UploadEnd(StrEnum):
    """Why a ticket is closed: it became an artifact, it was given up, or its body was wrong."""

    RECORDED = "recorded"
    EXPIRED = "expired"
    MISMATCH = "mismatch"


def is_terminal(status: Status) -> bool:
    """True for a status that nothing leaves."""
    return not TRANSITIONS[status]


def sources(target: Status) -> tuple[Status, ...]:
    """The statuses from which `target` may be reached, in lifecycle order."""
    return tuple(status for status in Status if target in TRANSITIONS[status])


def kind_of(job_type: str) -> RunnerKind:
    """The runner kind of a valid job type. KeyError for any other text."""
    return KIND_OF_PREFIX[job_type.split(".", 1)[0]]


def sql_list(values: object) -> str:
    """`'a', 'b'`: the values of an enum or a tuple of its members as SQL literals."""
    return ", ".join(f"'{value}'" for value in values)  # type: ignore[attr-defined]


def diagram() -> str:
    """The lifecycle as a Mermaid flowchart, for the documentation."""
    lines = [f"    {a} --> {b}" for a in Status for b in Status if b in TRANSITIONS[a]]
    return "\n".join(["flowchart LR", *lines])
