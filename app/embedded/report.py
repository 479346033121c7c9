"""What the development stack tells a person: aligned lines, measured times, what to do next.

On a terminal a last line says what is still being waited for and is written over; elsewhere each
finished part is one line. As JSON each fact is one object a line.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TextIO

from app.embedded.failure import PartFailed

# Silence up to here is fine; then the live line appears.
PATIENCE_SECONDS = 2.0
ERASE = "\r\x1b[K"

Style = Literal["text", "jsonl"]


class Report:
    """Writes to one stream; a closed one (`make run | head`) is no error."""

    def __init__(self, stream: TextIO | None = None, *, style: Style = "text") -> None:
        self._stream = stream or sys.stdout
        self._json = style == "jsonl"
        self._live = style == "text" and os.environ.get("TERM") != "dumb" and _is_terminal(stream)
        self._running: dict[str, float] = {}
        self._shown = False

    def title(self, version: str) -> None:
        """The first lines."""
        if self._json:
            return self._object(event="begin", version=version)
        self._write(f"execution-plane {version}, development stack")
        self._write(
            "Real PostgreSQL, S3, TLS, signed tokens. No Docker, no account, loopback only."
        )
        return self._write("")

    @asynccontextmanager
    async def part(
        self, name: str, what: str, where: str = "", *, since: float | None = None
    ) -> AsyncIterator[list[str]]:
        """Measure a part's start, from now or from `since` on, and say so when it succeeded.

        The list that is yielded may be given a better text for `what`, known only at the end.
        """
        begun = self._running[name] = since or time.monotonic()
        texts = [what]
        try:
            yield texts
        finally:
            self._running.pop(name, None)
        seconds = time.monotonic() - begun
        if self._json:
            facts = {"part": name, "what": texts[-1], "seconds": round(seconds, 3), "where": where}
            self._object(event="ready", **facts)
        else:
            line = f"  {name:<13} {texts[-1]:<31} ready {seconds:6.1f} s  {where}"
            self._write(line.rstrip())

    def note(self, name: str, text: str) -> None:
        """Something about a part that is worth knowing but no failure."""
        if self._json:
            return self._object(event="note", part=name, text=text)
        return self._write(f"  {name:<13} {text}")

    def rows(self, rows: Iterable[Sequence[str]]) -> None:
        """Aligned rows of a name, an address and a remark; an empty row is an empty line."""
        for row in rows:
            name, address, remark = (*row, "", "", "")[:3]
            self._write(f"  {name:<8} {address:<36} {remark}".rstrip())

    def text(self, text: str) -> None:
        """A sentence of its own; nothing in JSON."""
        if not self._json:
            self._write(text)

    def ready(self, facts: dict[str, Any], sentence: str, rows: Iterable[Sequence[str]]) -> None:
        """All parts are ready: what runs where, and what to do next."""
        if self._json:
            return self._object(event="stack_ready", **facts)
        self._write("")
        self._write(sentence)
        self._write("")
        return self.rows(rows)

    def event(self, at: datetime, attempt: str, word: str, remark: str) -> None:
        """One fact about an attempt, as it is recorded."""
        if self._json:
            facts = {"at": at.isoformat(), "attempt": attempt, "type": word, "remark": remark}
            return self._object(event="attempt", **facts)
        return self._write(f"{at:%H:%M:%S}  attempt {attempt}  {word:<16} {remark}".rstrip())

    def failure(self, failed: PartFailed) -> None:
        """Why a part did not start: its last lines and the one command that mends it."""
        lines = failed.last_lines()
        log = shown(failed.log_file) if failed.log_file else None
        if self._json:
            facts = {"part": failed.part, "text": failed.sentence, "last_lines": lines}
            return self._object(event="failed", mend=failed.mend, log=log, **facts)
        self._write(
            f"  {failed.part:<13} {failed.sentence}" + (" Its last lines:" if lines else "")
        )
        indent = " " * 16
        for line in lines:
            self._write(f"{indent}  {line[:200]}")
        if failed.mend:
            self._write(f"{indent}Mend:  {failed.mend}")
        return self._write(f"{indent}Log:   {log}") if log and lines else None

    async def animate(self) -> None:
        """Keep the live line true until cancelled; does nothing where there is no terminal."""
        while self._live:
            await asyncio.sleep(0.2)
            self._paint()

    def _paint(self) -> None:
        oldest = min(self._running.values(), default=time.monotonic())
        waited = time.monotonic() - oldest
        if waited > PATIENCE_SECONDS:
            names = ", ".join(self._running)
            self._raw(f"{ERASE}  waiting for   {names[:45]:<45} {waited:6.1f} s")
            self._shown = True

    def _object(self, **facts: Any) -> None:
        self._write(json.dumps(facts))

    def _write(self, line: str) -> None:
        self._raw((ERASE if self._shown else "") + line + "\n")
        self._shown = False

    def _raw(self, text: str) -> None:
        with suppress(BrokenPipeError, ValueError):
            self._stream.write(text)
            self._stream.flush()


def _is_terminal(stream: TextIO | None) -> bool:
    with suppress(ValueError):  # closed
        return (stream or sys.stdout).isatty()
    return False


def shown(path: Path) -> str:
    """A path as a person would type it here."""
    with suppress(ValueError):
        return str(path.resolve().relative_to(Path.cwd().resolve())) or "."
    return str(path)
