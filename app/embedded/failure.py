"""The one error of the development stack: what failed, and the command that mends it."""

from __future__ import annotations

from pathlib import Path


class PartFailed(Exception):
    """A part could not be started or stopped. `str()` is one sentence for a person.

    `mend` is a command or a short instruction, `log_file` the part's own log where there is one.
    """

    def __init__(
        self, part: str, sentence: str, *, mend: str | None = None, log_file: Path | None = None
    ) -> None:
        super().__init__(sentence)
        self.part = part
        self.sentence = sentence
        self.mend = mend
        self.log_file = log_file

    def last_lines(self, count: int = 10) -> list[str]:
        """At most `count` last lines of the part's log; empty where there is none."""
        return last_lines(self.log_file, count) if self.log_file else []


def last_lines(path: Path, count: int = 10) -> list[str]:
    """At most `count` last lines of a text file that may be missing or long."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 64 * 1024))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]
