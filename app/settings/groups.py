"""The groups of settings: frozen, units in their names, no default that is a secret."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)

PREFIX = "EXECUTION_PLANE_"

MIN_SECRET_LENGTH = 32

Role = Literal["pubsub", "control-plane", "runner", "operator"]


def _https_or_loopback(url: str) -> str:
    """Refuse plain HTTP to anything but this machine: a verdict must not rest on it."""
    loopback = ("http://127.0.0.1", "http://localhost", "http://[::1]")
    if not url.startswith("https://") and not url.startswith(loopback):
        raise ValueError(
            "must be an https:// address (plain http:// is accepted for loopback only)"
        )
    return url


TrustedUrl = Annotated[str, AfterValidator(_https_or_loopback)]


class Group(BaseModel):
    """A group of settings: frozen, and a field that nobody declared is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ServerSettings(Group):
    """Where the service listens and how it stops."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8443, ge=0, le=65535, description="Port to listen on.")
    tls_certificate_file: Path | None = Field(
        None, description="PEM certificate chain; unset where the platform ends TLS."
    )
    tls_key_file: Path | None = Field(None, description="PEM private key of the certificate.")
    graceful_stop_seconds: float = Field(
        8.0, gt=0, le=600, description="Time that running requests get after SIGTERM."
    )
    max_body_bytes: int = Field(
        16 * 1024 * 1024, ge=1024, description="Largest request body of any route."
    )
    backlog: int = Field(2048, ge=1, description="Listen backlog.")
    tls_check_seconds: float = Field(
        5.0, gt=0, description="How often the certificate files are looked at for a change."
    )
    first_byte_timeout_seconds: float = Field(
        10.0, gt=0, description="A connection that sends nothing for so long is closed."
    )
    head_timeout_seconds: float = Field(
        10.0, gt=0, description="Longest time from the first to the last byte of a request's head."
    )
    max_head_bytes: int = Field(
        32 * 1024, ge=4096, description="Largest head of a request; then 431."
    )
    max_head_fields: int = Field(100, ge=10, description="Most header fields of a request.")
    body_window_seconds: float = Field(
        10.0, gt=0, description="A body that comes too slowly for so long is given up: 408."
    )
    min_body_bytes_per_second: int = Field(
        512, ge=0, description="What too slowly means, as a mean over the window."
    )
    max_connections_per_source: int = Field(
        512, ge=0, description="Open connections of one address; 0, behind a proxy: any number."
    )

    @model_validator(mode="after")
    def _tls_pair(self) -> Self:
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_certificate_file and tls_key_file must be given together")
        return self


class DatabaseSettings(Group):
    """PostgreSQL, 15 to 18."""

    url: SecretStr = Field(description="postgresql://user:password@host:port/database")
    direct_url: SecretStr | None = Field(
        None,
        description="The same database past a transaction pooler, for what needs a session.",
    )
    pool_min_size: int = Field(1, ge=0, le=100, description="Connections kept open when idle.")
    pool_size: int = Field(8, ge=1, le=100, description="Connections at most, per instance.")
    statement_cache_size: int = Field(
        256, ge=0, description="Prepared statements kept a connection; 0 behind a pooler."
    )
    connect_timeout_seconds: float = Field(5.0, gt=0, description="Longest wait for a connection.")
    statement_timeout_seconds: float = Field(10.0, gt=0, description="Longest single statement.")
    lock_timeout_seconds: float = Field(5.0, gt=0, description="Longest wait for a row's lock.")
    acquire_timeout_seconds: float = Field(
        5.0, gt=0, description="Longest wait for a free connection of the pool; then 503."
    )


class ObjectSettings(Group):
    """The S3 or MinIO bucket that holds every body."""

    endpoint_url: str | None = Field(None, description="Unset for AWS itself.")
    region: str = Field("us-east-1", description="Region named in signatures.")
    bucket: str = Field(description="The one bucket of this installation.")
    prefix: str = Field("execution-plane/", description="All keys begin with it.")
    storage: Literal["s3", "minio"] = Field("s3", description="Recorded in artifact_refs.storage.")
    access_key_id: SecretStr = Field(description="Access key id.")
    secret_access_key: SecretStr = Field(description="Secret access key.")
    timeout_seconds: float = Field(10.0, gt=0, description="Longest single call.")
    ca_file: Path | None = Field(None, description="CA bundle of the store's certificate.")
    public_endpoint_url: str | None = Field(
        None, description="The store as runners and readers reach it; unset: the same endpoint."
    )
    addressing_style: Literal["path", "virtual"] = Field(
        "path", description="virtual: the bucket's name stands in the host name (AWS)."
    )
    checksum: Literal["sha256", "none"] = Field(
        "sha256",
        description="none: the store cannot verify SHA-256 (GCS), so this service hashes uploads.",
    )
    deletes: Literal["batch", "single"] = Field(
        "batch", description="single: the store cannot delete several objects at once (GCS)."
    )
    downloads: Literal["stream", "redirect"] = Field(
        "stream", description="redirect: artifacts are read from the store by a signed address."
    )
    url_seconds: int = Field(3600, ge=60, le=43_200, description="Life of a signed address.")
    single_put_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1024,
        le=5 * 1024**3,
        description="Artifacts above this size are uploaded in parts.",
    )
    part_bytes: int = Field(
        64 * 1024 * 1024,
        ge=5 * 1024 * 1024,
        le=5 * 1024**3,
        description="Size of a part; larger where there would be over 1,000 of them.",
    )


class IssuerSettings(Group):
    """One issuer of identity tokens that the service believes."""

    issuers: tuple[str, ...] = Field(
        min_length=1, description="Accepted spellings of `iss`, compared exactly."
    )
    certificates_url: TrustedUrl | None = Field(
        None, description="PEM certificates by key id (Google's oauth2/v1/certs form)."
    )
    jwks_url: TrustedUrl | None = Field(None, description="A JSON Web Key Set (RFC 7517).")
    max_lifetime_seconds: int = Field(
        3600, ge=60, le=86_400, description="Longest accepted exp - iat."
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.certificates_url is None) == (self.jwks_url is None):
            raise ValueError("give either certificates_url or jwks_url")
        return self


class GrantSettings(Group):
    """Who may act in which role: issuer, audience and account must all match exactly."""

    role: Role = Field(description="What the caller may do.")
    issuer: str = Field(description="Key of the issuer in `identity.issuers`.")
    audiences: tuple[str, ...] = Field(min_length=1, description="Accepted `aud`, exact.")
    accounts: tuple[str, ...] = Field(
        min_length=1, description="Accepted e-mail (or `sub` where no e-mail is), exact."
    )
    runner_id_prefixes: tuple[str, ...] = Field(
        (), description="Runner ids this identity may speak for; empty: any."
    )
    runner_kinds: tuple[str, ...] = Field((), description="Kinds it may register; empty: any.")
    runner_capabilities: tuple[str, ...] = Field(
        (), description="Capabilities it may register; empty: any."
    )


class IdentitySettings(Group):
    """OIDC issuers and grants. Without a single grant the service does not start."""

    issuers: dict[str, IssuerSettings] = Field(
        min_length=1, description="Issuers by a name of your choosing, as JSON."
    )
    grants: tuple[GrantSettings, ...] = Field(min_length=1, description="Who may do what, as JSON.")
    clock_skew_seconds: int = Field(30, ge=0, le=60, description="Tolerance for iat and exp.")
    certificate_max_stale_seconds: int = Field(
        86_400, ge=0, description="How long known keys are used while their endpoint fails."
    )
    certificate_refresh_cooldown_seconds: float = Field(
        60.0, gt=0, description="At most one forced refresh per issuer in this time."
    )
    certificate_timeout_seconds: float = Field(5.0, gt=0, description="Longest single fetch.")

    @model_validator(mode="after")
    def _known_issuers(self) -> Self:
        for grant in self.grants:
            if grant.issuer not in self.issuers:
                known = ", ".join(sorted(self.issuers))
                raise ValueError(f"a grant names issuer {grant.issuer!r}; known are: {known}")
        return self


class KeySettings(Group):
    """Server keys: everything derived from one (tokens, digests) stores the key's id."""

    current: str = Field(
        min_length=1, max_length=32, description="Id of the key used for new things."
    )
    secrets: dict[str, SecretStr] = Field(
        min_length=1, description="Key id to secret, at least 32 characters each."
    )

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if self.current not in self.secrets:
            raise ValueError(f"keys.current is {self.current!r}, but keys.secrets has no such id")
        for key_id, secret in self.secrets.items():
            if ":" in key_id:  # it separates the parts of what is stored with the id
                raise ValueError(f"keys.secrets has the id {key_id!r}; an id may hold no colon")
            if len(secret.get_secret_value()) < MIN_SECRET_LENGTH:
                raise ValueError(
                    f"keys.secrets[{key_id!r}] is shorter than {MIN_SECRET_LENGTH} characters"
                )
        return self


class PushSettings(Group):
    """The Pub/Sub push endpoint."""

    subscriptions: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Full subscription name to the handlers that its messages may call.",
    )
    poison: Literal["record", "nack"] = Field(
        "record", description="What answers a message that can never succeed: 204 or 4xx."
    )
    handler_timeout_seconds: float = Field(
        8.0, gt=0, le=600, description="Time budget of one delivery, below the ack deadline."
    )
    max_in_flight: int = Field(64, ge=1, description="Deliveries worked on at once; then 503.")
    max_in_flight_bytes: int = Field(
        64 * 1024 * 1024, ge=1024 * 1024, description="Bytes of bodies held at once; then 503."
    )
    failures_before_dead_letter: int = Field(20, ge=1, description="Own failures of one message.")
    failure_seconds_before_dead_letter: int = Field(
        600, ge=0, description="Least time from its first to its last failure."
    )
    deaths_before_dead_letter: int = Field(
        3, ge=1, description="Processes that died while working on one message."
    )
    dedupe_days: int = Field(32, ge=8, description="Life of a processed message's row.")
    dead_letter_days: int = Field(
        90, ge=1, description="Life of a dead letter after its message was last delivered."
    )


class LeaseSettings(Group):
    """Cadences of leases; told to runners as durations in every answer."""

    lease_seconds: float = Field(30.0, ge=5, le=3600, description="Life of a lease after a beat.")
    heartbeat_every_seconds: float | None = Field(
        None, gt=0, description="Default: a third of the lease."
    )
    claim_grace_seconds: float = Field(
        15.0, gt=0, description="Life of a lease until its first sign."
    )
    start_timeout_seconds: int = Field(600, ge=1, description="From the first lease to :start.")
    cancel_grace_seconds: int = Field(60, ge=1, description="Time a runner has to obey a cancel.")
    log_grace_seconds: int = Field(120, ge=0, description="Logs accepted after a lease's end.")
    key_hold_seconds: int = Field(
        300, ge=0, description="A key stays held after an end without the runner's word."
    )
    max_started_leases: int = Field(3, ge=1, le=10, description="Started leases an attempt.")
    resumable_job_types: tuple[str, ...] = Field(
        ("verify.*",), description="Job types safe to begin again after they had started."
    )
    signal_every_seconds: float = Field(1.0, gt=0, description="Poll behind notifications.")

    @property
    def beat_seconds(self) -> float:
        """The cadence told to runners."""
        return self.heartbeat_every_seconds or self.lease_seconds / 3

    @model_validator(mode="after")
    def _beats_fit(self) -> Self:
        if self.beat_seconds > self.lease_seconds / 3 + 1e-9:
            raise ValueError(
                "leases.heartbeat_every_seconds must be at most a third of leases.lease_seconds, "
                "so that two lost beats are harmless"
            )
        return self


class LimitSettings(Group):
    """Sizes. A larger request is refused with a reason, never cut in silence."""

    max_wait_seconds: float = Field(50.0, gt=0, le=3000, description="Longest long poll.")
    max_stream_seconds: float = Field(
        3000.0,
        gt=0,
        le=86_400,
        description="Longest stream of events; below the platform's limit. Readers resume it.",
    )
    stream_keep_alive_seconds: float = Field(
        15.0, gt=0, le=300, description="Longest silence of a stream of events."
    )
    max_log_chunk_bytes: int = Field(
        4 * 1024 * 1024, ge=65_536, description="Largest piece of a log sent at once."
    )
    max_log_bytes_per_attempt: int = Field(
        256 * 1024 * 1024, ge=1024 * 1024, description="All logs of one attempt together."
    )
    max_artifact_bytes: int = Field(
        5 * 1024**3, ge=1024, le=5 * 1024**4, description="Largest single artifact."
    )
    max_artifact_body_bytes: int = Field(
        8 * 1024 * 1024,
        ge=1024,
        description="Largest artifact that may be uploaded through this service.",
    )
    max_artifacts_per_attempt: int = Field(
        1000, ge=1, description="Artifacts that one attempt may ask to upload."
    )
    max_follow_seconds: float = Field(
        240.0,
        gt=0,
        le=3000,
        description="Longest answer that follows a log, below the platform's limit of a request.",
    )
    max_batch: int = Field(500, ge=1, le=500, description="Commands in one batch.")
    max_placement_classes_per_kind: int = Field(
        2000, ge=1, description="Different placements in use for one runner kind; then 422."
    )
    list_statement_timeout_seconds: float = Field(
        2.0, gt=0, description="Longest statement of a list; then 422."
    )


class TelemetrySettings(Group):
    """Logs and metrics; traces are switched by the standard OTEL_* variables."""

    log_format: Literal["auto", "json", "text"] = Field(
        "auto", description="auto: readable text on a terminal, JSON lines elsewhere."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least level that is written."
    )
    access_log: bool = Field(default=True, description="One line a request.")
    access_log_share: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of the requests answered with less than 400 that have a line, which "
        "then says the share; all others always have one.",
    )


class FailpointSettings(Group):
    """One armed failpoint."""

    action: Literal["kill", "stop", "sleep", "error_before", "after_then_error", "drop_answer"] = (
        Field(description="What happens.")
    )
    probability: float = Field(1.0, gt=0, le=1, description="How likely, each time.")
    times: int = Field(1_000_000, ge=1, description="At most so often.")
    seconds: float = Field(1.0, ge=0, description="Length of a sleep.")


class TestingSettings(Group):
    """Faults on purpose. A process that is not meant to be killed refuses to start with any."""

    allow_failpoints: bool = Field(default=False, description="Only ever true in tests.")
    failpoints: dict[str, FailpointSettings] = Field(
        default_factory=dict, description="Moment to what happens there."
    )

    @model_validator(mode="after")
    def _allowed(self) -> Self:
        if self.failpoints and not self.allow_failpoints:
            raise ValueError(
                "failpoints are armed but testing.allow_failpoints is not true; "
                "remove them, this service would kill itself"
            )
        return self
