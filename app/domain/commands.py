"""Every command a caller may give, whichever way it comes: one model each.

Over REST the path and the headers fill the ids and the lease token; over push they stand in the
envelope's `data`. What a control plane sends must be storable as it is; what a runner reports is
made storable (NUL and lone surrogates become U+FFFD), so that an outcome is never refused for its
text. Fields that nobody declared are refused: a misspelt `concurrency_key` must not be ignored.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Self
from uuid import UUID

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    field_validator,
    model_validator,
)

from app.domain import jsontext
from app.domain.lifecycle import (
    FORCED_CATEGORY,
    JOB_TYPE_PATTERN,
    EvidenceStatus,
    EvidenceType,
    FailureCategory,
    LogStream,
    Outcome,
    OutputType,
    Phase,
    RetentionClass,
    RunnerKind,
    RunnerStatus,
)

MAX_MESSAGE_BYTES = 4096
MAX_NAME_LENGTH = 200
MAX_SPEC_BYTES = 256 * 1024
MAX_RESULT_BYTES = 16 * 1024
MAX_VALUES_TO_MASK = 1000


class Command(BaseModel):
    """A command: immutable, nothing undeclared."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def _storable(value: Any) -> Any:
    if not all(map(jsontext.is_clean, _texts(value))):
        raise ValueError("must not hold NUL characters or unpaired surrogates")
    return value


def _texts(value: Any) -> list[str]:
    found: list[str] = []
    jsontext.map_text(value, lambda text: found.append(text) or text)  # type: ignore[func-returns-value]
    return found


def _cleaned(value: Any) -> Any:
    return jsontext.map_text(value, jsontext.clean)


def bounded(limit: int) -> Any:
    """A validator: at most so many bytes of JSON."""

    def check(value: Any) -> Any:
        if value is not None and len(jsontext.dumps(value).encode(errors="replace")) > limit:
            raise ValueError(f"must be at most {limit} bytes of JSON")
        return value

    return AfterValidator(check)


Count = Annotated[int, Field(strict=True, ge=0, le=2**53 - 1)]
Name = Annotated[
    str,
    StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$"),
    AfterValidator(_storable),
]
RunnerId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
Label = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$")
]
Labels = Annotated[dict[Label, Label], Field(max_length=16)]
JobType = Annotated[str, StringConstraints(pattern=JOB_TYPE_PATTERN, max_length=200)]
Capability = Annotated[
    str,
    StringConstraints(
        pattern=r"^(ansible|kubernetes|helm|opentofu|ssh|verify)"
        r"(([.][a-z0-9_]{1,48}){1,4}|([.][a-z0-9_]{1,48}){0,3}[.][*])$"
    ),
]
Zone = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._/-]{1,64}$")]
# Cut to MAX_MESSAGE_BYTES only after it was masked, or the cut would take a secret apart.
ReportedMessage = Annotated[str, BeforeValidator(_cleaned)]
Message = Annotated[str, StringConstraints(max_length=1000), AfterValidator(_storable)]
JsonObject = Annotated[dict[str, Any], AfterValidator(_storable)]


class Placement(Command):
    """What an attempt demands of the runner that takes it."""

    zone: Zone | None = None
    """Only runners of this zone."""
    labels: Annotated[dict[Label, Label], Field(max_length=4)] = Field(default_factory=dict)
    """Labels that the runner must carry, at most four."""


_ANYWHERE = Placement()


class CreateAttempt(Command):
    """Create one attempt: one technical execution, to be taken by one runner."""

    operation_id: UUID
    """The operation that this execution belongs to."""
    plan_id: UUID
    """The plan of that operation."""
    plan_node_id: UUID
    """The node of the plan."""
    node_run_id: UUID
    """The run of that node."""
    requested_by_service: Name = "control-plane-service"
    """Who asks."""
    idempotency_key: Name
    """Chosen by the caller, kept for ever: the same key and request give the same attempt."""
    job_type: JobType
    """What is to be done; its first word fixes the kind of runner."""
    job_spec_ref: Annotated[JsonObject, bounded(MAX_SPEC_BYTES)]
    """The normalised job specification, without secret values."""
    priority: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] = 100
    """The smaller number goes first, then the older attempt."""
    timeout_seconds: Annotated[int, Field(strict=True, ge=1, le=604_800)]
    """Longest run, from the first start."""
    queue_timeout_seconds: Annotated[int, Field(strict=True, ge=1, le=2_592_000)] | None = None
    """Longest wait in the queue; unset: no limit."""
    placement: Annotated[
        Placement,
        # A plain default would be copied, deeply, for each command; this one never changes.
        Field(
            default_factory=lambda: _ANYWHERE,
            json_schema_extra={"default": {"labels": {}, "zone": None}},
        ),
    ]
    """What the runner must have."""
    concurrency_key: Name | None = None
    """What only one attempt may touch at a time, for instance a host or a state file."""


class CancelAttempt(Command):
    """Ask that an attempt ends without finishing its work."""

    attempt_id: UUID
    """The attempt."""
    reason: Message = ""
    """Why, for the timeline."""


class CancelOperation(Command):
    """Ask that every open attempt of an operation ends without finishing its work."""

    operation_id: UUID
    """The operation."""
    reason: Message = ""
    """Why, for the timelines."""


class GiveReason(Command):
    """An operator's word for something that cannot be taken back."""

    reason: Annotated[Message, StringConstraints(min_length=3)]
    """Why; it is logged."""


class RegisterRunner(Command):
    """Register a runner instance, or a new session (process) of it."""

    runner_id: RunnerId
    """The runner instance."""
    session_id: UUID
    """New for every process start."""
    sequence: Count = 0
    """Grows within the session; an older one changes nothing."""
    runner_kind: RunnerKind
    """What it is made for."""
    version: Annotated[
        str,
        StringConstraints(
            pattern=r"^(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})([-+][0-9A-Za-z.+-]{1,64})?$"
        ),
    ]
    """Its version, by semver.org."""
    capabilities: Annotated[list[Capability], Field(min_length=1, max_length=64)]
    """Job types it can do: exact, or a prefix with `.*`."""
    zone: Zone | None = None
    """Where it runs."""
    labels: Labels = Field(default_factory=dict)
    """What placements may ask for."""
    capacity_total: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 1
    """Leases it can hold at once."""

    @model_validator(mode="after")
    def _own_kind(self) -> Self:
        prefix = "verify" if self.runner_kind is RunnerKind.VERIFICATION else self.runner_kind.value
        if any(capability.split(".", 1)[0] != prefix for capability in self.capabilities):
            raise ValueError(f"a {self.runner_kind} runner's capabilities begin with {prefix}.")
        return self


class ReportStatus(Command):
    """A runner's report about itself."""

    runner_id: RunnerId
    """The runner instance."""
    session_id: UUID
    """Its registered session."""
    sequence: Count
    """Grows within the session; an older report changes nothing."""
    status: RunnerStatus
    """How it sees itself."""
    capacity_total: Annotated[int, Field(strict=True, ge=0, le=10_000)]
    """Leases it can hold at once."""
    last_error: ReportedMessage | None = None
    """What went wrong last."""


class ClaimLeases(Command):
    """Ask for leases."""

    runner_id: RunnerId
    """The runner instance."""
    session_id: UUID
    """Its registered session."""
    request_id: UUID
    """New for every claim; a repeat gives the same leases with their tokens."""
    max_leases: Annotated[int, Field(strict=True, ge=1, le=500)] = 1
    """At most so many, and never more than its free capacity."""
    wait_seconds: Annotated[float, Field(ge=0, le=3000, allow_inf_nan=False)] = 0
    """How long to wait for work before an empty answer."""


class UnderLease(Command):
    """A command that only the holder of a lease may give."""

    lease_id: UUID
    """The lease."""
    lease_token: SecretStr = Field(max_length=200)
    """The secret that the claim's answer held."""


class StartLease(UnderLease):
    """Begin the work: nothing may be touched before this is answered with 200."""


class Heartbeat(UnderLease):
    """A sign of life, which renews the lease."""

    session_id: UUID
    """The session that claimed the lease."""
    sequence: Annotated[int, Field(strict=True, ge=1, le=2**53 - 1)]
    """Grows with every beat of this lease; an older one renews and changes nothing else."""
    phase: Phase | None = None
    """What the runner is doing; unset: unchanged."""
    progress_percent: Annotated[int, Field(strict=True, ge=0, le=100)] | None = None
    """How far it is; unset: unchanged."""
    message: ReportedMessage | None = None
    """For people."""


class CompleteLease(UnderLease):
    """Say how the work ended. The first word is final; the same one may be repeated."""

    outcome: Outcome
    """The end of the attempt."""
    failure_category: FailureCategory | None = None
    """Why it did not succeed; required for `failed`, follows from `cancelled` and `timed_out`."""
    failure_message: ReportedMessage | None = None
    """What happened, for people."""
    result: (
        Annotated[dict[str, Any], BeforeValidator(_cleaned), bounded(MAX_RESULT_BYTES)] | None
    ) = None
    """A small result, at most 16 KiB of JSON; larger ones are outputs."""

    @model_validator(mode="after")
    def _category_fits(self) -> Self:
        forced = FORCED_CATEGORY.get(self.outcome)
        if self.outcome is Outcome.SUCCEEDED and self.failure_category is not None:
            raise ValueError("a succeeded attempt has no failure_category")
        if self.outcome is Outcome.FAILED and self.failure_category is None:
            raise ValueError("a failed attempt needs a failure_category")
        if forced is not None and self.failure_category not in {None, forced}:
            raise ValueError(f"the failure_category of {self.outcome} is {forced}")
        return self

    @property
    def category(self) -> FailureCategory | None:
        """The failure category, given or implied by the outcome."""
        return self.failure_category or FORCED_CATEGORY.get(self.outcome)


class ReleaseLease(UnderLease):
    """Give the lease back without having worked."""

    reason: ReportedMessage = ""
    """Why, for the timeline."""


class AppendLog(UnderLease):
    """Append bytes to one stream of the lease's log."""

    stream: LogStream
    """Which stream."""
    offset: Count
    """Where the bytes begin, counted in raw bytes of this stream of this lease, from 0."""
    data: bytes = Field(repr=False)
    """The raw bytes."""
    final: bool = False
    """Nothing follows in this stream."""
    mask: list[SecretStr] = Field(default=[], max_length=MAX_VALUES_TO_MASK)
    """Texts that are secret: masked in these bytes and never stored. Send them with each chunk."""
    mask_base64: list[SecretStr] = Field(default=[], max_length=MAX_VALUES_TO_MASK)
    """The same for values that are no text, in base64. Their places count on from `mask`."""

    @field_validator("mask_base64")
    @classmethod
    def _is_base64(cls, values: list[SecretStr]) -> list[SecretStr]:
        for value in values:
            try:
                base64.b64decode(value.get_secret_value(), validate=True)
            except (binascii.Error, ValueError):
                raise ValueError("must be standard base64 with padding") from None
        return values

    @property
    def exact_values(self) -> list[bytes]:
        """All values to mask, those of `mask` first."""
        texts = (text.get_secret_value() for text in self.mask)
        others = (base64.b64decode(value.get_secret_value()) for value in self.mask_base64)
        return [*(text.encode("utf-8", "surrogatepass") for text in texts), *others]


ContentType = Annotated[
    str,
    StringConstraints(
        max_length=200,
        pattern=r"^[A-Za-z0-9!#$&^_.+-]{1,80}/[A-Za-z0-9!#$&^_.+-]{1,80}"
        r"(; ?charset=[A-Za-z0-9._-]{1,30})?$",
    ),
]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
ReportedName = Annotated[
    str, BeforeValidator(_cleaned), StringConstraints(min_length=1, max_length=MAX_NAME_LENGTH)
]
Subject = Annotated[
    str, BeforeValidator(_cleaned), StringConstraints(min_length=1, max_length=1000)
]


class UploadArtifact(UnderLease):
    """Ask to upload the body of an artifact. Something must name it before it is kept."""

    request_id: UUID
    """New for every artifact; a repeat gives the same ticket with fresh addresses."""
    name: ReportedName | None = None
    """For people, such as a file's name."""
    content_type: ContentType = "application/octet-stream"
    """What it is, as a media type."""
    byte_size: Count
    """Its exact size."""
    digest: Digest
    """`sha256:` and the SHA-256 of its bytes in small hex letters."""
    retention_class: RetentionClass = RetentionClass.NORMAL
    """How long it is kept."""


class FindArtifact(UnderLease):
    """Name one of the lease's artifacts."""

    artifact_id: UUID
    """The id that the ticket gave."""


class RecordOutput(UnderLease):
    """Say what the work produced: an artifact under a name, once."""

    name: ReportedName
    """Its name, unique within the attempt."""
    output_type: OutputType
    """Its form."""
    artifact_id: UUID
    """The artifact that holds it: a ticket whose body was uploaded, or one recorded before."""
    schema_ref: (
        Annotated[str, BeforeValidator(_cleaned), StringConstraints(min_length=1, max_length=500)]
        | None
    ) = None
    """What its content keeps to, if anything."""


class RecordEvidence(UnderLease):
    """Say what shows that a condition holds or does not. It is appended and never changed."""

    request_id: UUID
    """New for every evidence; a repeat of the same one has no second effect."""
    evidence_type: EvidenceType
    """Its form."""
    status: EvidenceStatus
    """What it shows."""
    subject_ref: Subject
    """What it is about."""
    artifact_id: UUID | None = None
    """The artifact that shows it: a ticket whose body was uploaded, or one recorded before."""
    output_id: UUID | None = None
    """The output of this attempt that it is about."""
