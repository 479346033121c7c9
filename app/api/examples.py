"""Request bodies that the API's documentation shows; tests send each of them."""

from __future__ import annotations

from typing import Any

CREATE_ATTEMPT: dict[str, Any] = {
    "operation_id": "0b0f4d0e-5b0c-4b52-9b39-6b2c5c1f8a01",
    "plan_id": "0b0f4d0e-5b0c-4b52-9b39-6b2c5c1f8a02",
    "plan_node_id": "0b0f4d0e-5b0c-4b52-9b39-6b2c5c1f8a03",
    "node_run_id": "0b0f4d0e-5b0c-4b52-9b39-6b2c5c1f8a04",
    "idempotency_key": "restart-web-7-run-1",
    "job_type": "ssh.command.run",
    "job_spec_ref": {"command": "systemctl restart web"},
    "timeout_seconds": 600,
}

REGISTER_RUNNER: dict[str, Any] = {
    "session_id": "5c2a6c0e-1c53-4ff0-8f4e-3f3f9d7d2b01",
    "runner_kind": "ssh",
    "version": "1.0.0",
    "capabilities": ["ssh.command.run"],
    "zone": "eu-1",
    "labels": {"network": "private"},
    "capacity_total": 1,
}

CLAIM_LEASES: dict[str, Any] = {
    "session_id": "5c2a6c0e-1c53-4ff0-8f4e-3f3f9d7d2b01",
    "request_id": "5c2a6c0e-1c53-4ff0-8f4e-3f3f9d7d2b02",
    "max_leases": 1,
    "wait_seconds": 30,
}

HEARTBEAT: dict[str, Any] = {
    "session_id": "5c2a6c0e-1c53-4ff0-8f4e-3f3f9d7d2b01",
    "sequence": 1,
    "phase": "executing",
    "progress_percent": 40,
    "message": "step 2 of 5",
}

COMPLETE: dict[str, Any] = {"outcome": "succeeded", "result": {"exit_code": 0}}

REPORT_STATUS: dict[str, Any] = {
    "session_id": "5c2a6c0e-1c53-4ff0-8f4e-3f3f9d7d2b01",
    "sequence": 1,
    "status": "ready",
    "capacity_total": 1,
}

UPLOAD_ARTIFACT: dict[str, Any] = {
    "request_id": "5c2a6c0e-1c53-4ff0-8f4e-3f3f9d7d2b03",
    "name": "plan.json",
    "content_type": "application/json",
    "byte_size": 2,
    "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
    "retention_class": "normal",
}

RECORD_OUTPUT: dict[str, Any] = {
    "name": "plan",
    "output_type": "json",
    "artifact_id": "019b0d5c-1c53-7ff0-8f4e-3f3f9d7d2b04",
    "schema_ref": "https://example.com/schemas/plan-1.json",
}

RECORD_EVIDENCE: dict[str, Any] = {
    "request_id": "5c2a6c0e-1c53-4ff0-8f4e-3f3f9d7d2b05",
    "evidence_type": "probe",
    "status": "passed",
    "subject_ref": "https://web-7.example.com/healthz",
}

APPEND_LOG: dict[str, Any] = {
    "offset": 0,
    "final": False,
    "mask": ["correct-horse-9"],
    "data_base64": "bG9naW4gY29ycmVjdC1ob3JzZS05IG9rCg==",
}
