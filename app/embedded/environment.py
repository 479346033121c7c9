"""The settings that make the service use the development stack: environment variables, no code."""

from __future__ import annotations

import importlib.metadata
import json
import re
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import app
from app.embedded.folder import read_memory, write_memory

ROOT = Path(app.__file__).parents[1]
PREFIX = "EXECUTION_PLANE_"
AUDIENCE = "https://execution-plane.localhost"
TOPIC = "projects/dev/topics/execution-plane"
SUBSCRIPTION = "projects/dev/subscriptions/execution-plane"
ISSUER = "https://issuer.localhost"
ISSUER_KEY = "dev"
ACCOUNTS = {
    role: f"{role}@dev.localhost" for role in ("control-plane", "runner", "operator", "pubsub")
}
PUSH_HANDLERS = (
    *("attempt.create", "attempt.cancel"),
    *("runner.register", "runner.report_status"),
    *("lease.heartbeat", "lease.complete", "lease.release"),
    *("log.append", "output.record", "evidence.record"),
)


@dataclass(frozen=True)
class Parts:
    """What the service has to be told about the other parts."""

    database_url: str
    objects: Mapping[str, str]
    issuer: str
    issuer_url: str
    certificate_file: Path
    key_file: Path
    port: int


def service_environment(parts: Parts, keys: Mapping[str, Any]) -> dict[str, str]:
    """Every variable that the service needs; nothing else configures it."""
    issuer = {
        "issuers": [parts.issuer],
        "certificates_url": f"{parts.issuer_url}/oauth2/v1/certs",
    }
    grants = [
        {"role": role, "issuer": ISSUER_KEY, "audiences": [AUDIENCE], "accounts": [account]}
        for role, account in ACCOUNTS.items()
    ]
    values: dict[str, Any] = {
        "SERVER__HOST": "127.0.0.1",
        "SERVER__PORT": parts.port,
        "SERVER__TLS_CERTIFICATE_FILE": parts.certificate_file,
        "SERVER__TLS_KEY_FILE": parts.key_file,
        "DATABASE__URL": parts.database_url,
        **{f"OBJECTS__{name.upper()}": value for name, value in parts.objects.items()},
        "IDENTITY__ISSUERS": {ISSUER_KEY: issuer},
        "IDENTITY__GRANTS": grants,
        "KEYS__CURRENT": keys["current"],
        "KEYS__SECRETS": keys["secrets"],
        "PUSH__SUBSCRIPTIONS": {SUBSCRIPTION: PUSH_HANDLERS},
        "SCHEDULER__TOPIC": TOPIC,
        "SCHEDULER__PUBSUB_URL": parts.issuer_url,
        "SCHEDULER__PUBSUB_CREDENTIALS": "none",
        "CALLBACKS__ALLOWED_NETWORKS": ["127.0.0.0/8", "::1/128"],
        "CALLBACKS__ALLOWED_HOSTS": ["localhost"],
        "CALLBACKS__CA_FILE": parts.certificate_file.with_name("ca.pem"),
        "CALLBACKS__PUBSUB_ENDPOINT": parts.issuer_url,
        "CALLBACKS__PUBSUB_IDENTITY": "none",
    }
    return {
        PREFIX + name: json.dumps(value) if isinstance(value, (dict, list)) else str(value)
        for name, value in values.items()
    }


def server_keys(file: Path) -> dict[str, Any]:
    """This installation's server keys, made at the first start."""
    keys = read_memory(file)
    if "current" not in keys:
        keys = {"current": "dev-1", "secrets": {"dev-1": secrets.token_urlsafe(48)}}
        write_memory(file, keys)
    return keys


def passed_on(environ: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """Settings of the caller that the stack leaves open, such as cadences and the log level.

    What the stack decides wins: a shell may still hold another stack's variables.
    """
    return {
        name: value
        for name, value in environ.items()
        if name.startswith((PREFIX, "OTEL_")) and name.removesuffix("_FILE") not in ours
    }


def version() -> str:
    """The version of this installation, or of this checkout where it is not installed."""
    try:
        return importlib.metadata.version("execution-plane-service")
    except importlib.metadata.PackageNotFoundError:
        text = (ROOT / "pyproject.toml").read_text()
    found = re.search(r'^version = "([^"]+)"', text, re.MULTILINE)
    return found[1] if found else "unknown"


def as_exports(values: Mapping[str, str]) -> str:
    """Lines that a POSIX shell can read."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())
