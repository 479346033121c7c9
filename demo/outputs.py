"""What a job leaves in the folder `outputs` becomes its outputs; one evidence says how it ended.

Everything goes through the service, so the runner need not reach the object store; a file that the
service does not take that way is said and left out. Nothing here decides how the job went.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calls import Answer, Api, say

FOLDER = "outputs"
TYPES = {".json": "json", ".yaml": "yaml", ".yml": "yaml", ".txt": "text", ".tar": "archive"}


def record(
    api: Api, lease: str, lease_token: str, folder: Path, code: int, until: Callable[[], bool]
) -> None:
    """Record each file, by name, then the evidence. `lease` is the lease's path."""

    def send(method: str, path: str, body: Any) -> Answer:
        return api.insist(method, path, body, lease_token, until=until)

    files = sorted(path for path in (folder / FOLDER).glob("*") if path.is_file())
    for path in files:
        answer = _record_file(send, lease, path)
        say(f"output {path.name}" + ("" if answer.ok else f" is not recorded: {answer.reason}"))
    if files:
        body = {
            "request_id": str(uuid.uuid4()),
            "evidence_type": "assertion",
            "status": "failed" if code else "passed",
            "subject_ref": f"its script ended with {code}",
        }
        send("POST", f"{lease}/evidence", body)


def _record_file(send: Callable[[str, str, Any], Answer], lease: str, path: Path) -> Answer:
    """Ask for a ticket, send the body, name it. Each step may be repeated as it was."""
    body = path.read_bytes()
    announced = {
        "request_id": str(uuid.uuid4()),
        "name": path.name,
        "byte_size": len(body),
        "digest": f"sha256:{hashlib.sha256(body).hexdigest()}",
    }
    ticket = send("POST", f"{lease}/artifacts", announced)
    if not ticket.ok:
        return ticket
    if not ticket.fields["verified"]:
        if ticket.fields["content_path"] is None:
            return Answer(0, {"reason": "too large to go through the service"}, 0.0)
        sent = send("PUT", ticket.fields["content_path"], body)
        if not sent.ok:
            return sent
    output = {
        "name": path.name,
        "output_type": TYPES.get(path.suffix, "binary"),
        "artifact_id": ticket.fields["artifact_id"],
    }
    return send("POST", f"{lease}/outputs", output)
