"""The job of the demonstration: a script whose every byte of output is known beforehand."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Any

JOB_TYPE = "ssh.command.run"
# Runners of their own zone: a demonstration takes no other job, and no other runner takes its job.
ZONE = "demo"
SECONDS_A_STEP = 2
STEPS = ("look at the host", "write the settings", "restart the service", "check that it answers")
# What the script prints has a credential's form and is worth nothing. It is put together under a
# plain name, for a specification that holds a secret is refused: only the output has it.
CREDENTIAL_FORM = "ghp_" + "demo" * 9
MASKED = "***"
WARNING_STEP = 2


@dataclass(frozen=True)
class DemoJob:
    """One job to publish, with ids of its own."""

    zone: str = ZONE
    operation_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    key: str = field(default_factory=lambda: f"demo-{uuid.uuid4()}")

    def envelope(self) -> bytes:
        """The message that asks for it."""
        data = {
            "operation_id": self.operation_id,
            **{name: str(uuid.uuid4()) for name in ("plan_id", "plan_node_id", "node_run_id")},
            "requested_by_service": "demo",
            "idempotency_key": self.key,
            "job_type": JOB_TYPE,
            "job_spec_ref": {"script": script()},
            "priority": 0,
            "timeout_seconds": 60,
            "placement": {"zone": self.zone},
        }
        message: dict[str, Any] = {"v": 1, "to": "attempt.create", "id": str(uuid.uuid4())}
        return json.dumps({**message, "data": data}).encode()


def script() -> str:
    """What is run: about eight seconds of work, on both streams."""
    lines = ["printed=ghp_$(printf 'demo%.0s' 1 2 3 4 5 6 7 8 9)"]
    for number, line in enumerate(_stdout_lines(), 1):
        lines += [f"echo '{line}'", f"sleep {SECONDS_A_STEP / 2}"]
        if number == WARNING_STEP:
            lines.append('echo "warning: $printed expires soon" >&2')
        lines.append(f"sleep {SECONDS_A_STEP / 2}")
    return "\n".join(lines)


def expected() -> dict[str, bytes]:
    """What is stored of what it prints, by stream: all of it, but for the credential."""
    stderr = f"warning: {MASKED} expires soon\n"
    return {
        "stdout": "".join(f"{x}\n" for x in _stdout_lines()).encode(),
        "stderr": stderr.encode(),
    }


def _stdout_lines() -> list[str]:
    return [f"step {number} of {len(STEPS)}: {what}" for number, what in enumerate(STEPS, 1)]
