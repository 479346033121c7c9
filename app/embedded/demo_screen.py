"""What the demonstration shows: numbered facts with their measured times, 80 columns wide."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from app.embedded.environment import ROOT
from app.embedded.home import DEFAULT, Home
from app.embedded.report import Report, shown


class Screen:
    """Writes the facts of one demonstration in their order."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._number = 0

    def text(self, text: str = "") -> None:
        """A line as it is."""
        self._report.text(text)

    def fact(self, what: str, detail: str, seconds: float | None = None) -> None:
        """The next numbered fact and how long it took."""
        self._number += 1
        took = "" if seconds is None else duration(seconds)
        self.text(f"  {self._number}  {what:<16} {detail:<48} {took:>9}".rstrip())

    def output(self, stream: str, lines: Sequence[str]) -> None:
        """Lines of the job's own output."""
        for line in lines:
            self.text(f"       {stream} | {line}")

    def timeline(self, events: Sequence[dict[str, Any]]) -> None:
        """The events with the time since the first one and until the next one."""
        moments = [datetime.fromisoformat(event["created_at"]) for event in events]
        self.text(f"  {'Timeline, as recorded':<54}{'after':>10}{'lasted':>12}")
        for number, event in enumerate(events):
            after = (moments[number] - moments[0]).total_seconds()
            lasted = ""
            if number + 1 < len(events):
                lasted = duration((moments[number + 1] - moments[number]).total_seconds())
            what = f"{event['event_type']:<15} {_about(event)}"
            self.text(f"    {what:<52}{duration(after):>10}{lasted:>12}".rstrip())

    def rows(self, title: str, lines: Sequence[str]) -> None:
        """Something to do next."""
        for line in lines:
            self.text(f"  {title:<9} {line}".rstrip())
            title = ""


def duration(seconds: float) -> str:
    """A time that was measured, as people say it."""
    return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else f"{seconds:.1f} s"  # noqa: PLR2004


def tail(identifier: str) -> str:
    """The end of an id: its beginning is a time, and so much alike."""
    return identifier[-8:]


def options_of(home: Home) -> str:
    """The options by which the command line finds this stack; empty for the usual one."""
    root = "" if home.root == ROOT / DEFAULT else f" --home {shlex.quote(shown(home.root))}"
    return root + (f" --name {home.name}" if home.name else "")


def curl_lines(state: dict[str, Any], options: str, attempt_id: str) -> list[str]:
    """Commands that read the log again, to be pasted into a shell."""
    return [
        f"id={attempt_id}",
        f"token=$(.venv/bin/execution-plane dev token{options} --role operator)",
        f'curl --cacert {shown(Path(state["ca_file"]))} -H "Authorization: Bearer $token" \\',
        f"  {state['api_url']}/v1/attempts/$id/logs/stdout",
    ]


def _about(event: dict[str, Any]) -> str:
    """What is worth knowing of an event."""
    facts = event["payload"]
    match event["event_type"]:
        case "created":
            return f"by {facts['requested_by_service']}"
        case "leased":
            return f"{facts['runner_instance_id']}, lease {facts['lease_number']}"
        case "heartbeat":
            return f"phase: {facts['phase']}"
        case "succeeded":
            return f"exit code {facts['result']['exit_code']}"
        case "lost" | "cancelled":
            return str(facts["failure_category"])
        case _:
            return ""
