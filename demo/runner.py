"""A whole runner in plain Python 3.11: it takes jobs, runs them with bash and says how they went.

    python3 demo/runner.py --url https://localhost:8443 --ca .dev/tls/ca.pem \
        --token-command ".venv/bin/execution-plane dev token --role runner" \
        --id my-runner --kind ssh --capability ssh.command.run

This folder is all of it and is meant to be copied; docs/runner-protocol.md has the rules that it
keeps. A job's specification is {"script": "..."} or {"command": "..."}; a line with "step 2 of 5"
in its output is its progress, and a file that it leaves in the folder "outputs" is an output of the
attempt. The first SIGTERM or Ctrl-C lets the job end and takes no other one;
the second one ends the job too.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO, Any

import outputs
from calls import CALL_SECONDS, Answer, Api, Token, say
from work import Work

WAIT_SECONDS = 20  # how long the service may hold an answer back until there is news
LOG_SECONDS = 60.0  # the outcome waits so long for the last of the log
CHUNK_BYTES = 1024 * 1024
SPOOL_BYTES = 256 * 1024 * 1024  # unsent output kept on disk; beyond it the job has to wait
GATHER_SECONDS = 0.2  # few chunks from a chatty job, and it can still be followed
STEP = re.compile(rb"\bstep (\d{1,6}) of (\d{1,6})\b[^\r\n]{0,200}")


class Stream:
    """One stream of a job's output: into a file at once, from there to the service."""

    def __init__(self, job: Job, name: str, pipe: IO[bytes]) -> None:
        self._job, self._name, self._pipe, self._api = job, name, pipe, job.new_api()
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the stream
        self._size = self._sent = 0
        self._is_closed = self._is_refused = False
        self._news = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        self.sending = threading.Thread(target=self._send, daemon=True)
        self.sending.start()

    @property
    def _unsent(self) -> int:
        return self._size - self._sent

    def _read(self) -> None:
        """Take what comes to its end, stored or not: a full pipe would stop the job."""
        line = b""
        while data := os.read(self._pipe.fileno(), 65_536):
            whole, _, line = (line[-1000:] + data).rpartition(b"\n")
            self._job.note_step(whole)
            with self._news:
                self._news.wait_for(lambda: self._is_refused or self._unsent < SPOOL_BYTES)
                if not self._is_refused:
                    self._keep(data)
                self._news.notify_all()
        with self._news:
            self._is_closed = True
            self._news.notify_all()

    def _keep(self, data: bytes) -> None:
        try:
            self._size += os.pwrite(self._file.fileno(), data, self._size)
        except OSError as error:
            say(f"{self._name} cannot be kept from byte {self._size} on: {error}")
            self._is_refused = True

    def _send(self) -> None:
        """Send until the service has said that the stream is complete, or that it wants no more."""
        wanted = 1
        while True:
            chunk, final = self._next_chunk(wanted)
            path = f"{self._job.path}/logs/{self._name}?offset={self._sent}&final={final}"
            answer = self._api.insist(
                "POST", path, chunk, self._job.lease_token, until=self._job.is_past
            )
            with self._news:
                self._is_refused |= not answer.ok and answer.reason != "log-gap"
                self._sent = answer.fields.get("next_offset", self._sent)
                self._news.notify_all()
            if self._is_refused:
                say(f"{self._name} is stored up to byte {self._sent}: {answer.reason}")
            if self._is_refused or answer.fields.get("final"):
                return
            wanted = len(chunk) + 1 if answer.fields.get("need_more") else 1

    def _next_chunk(self, wanted: int) -> tuple[bytes, str]:
        """The bytes to send next, and `true` if they are the last ones."""
        with self._news:
            self._news.wait_for(lambda: self._is_closed or self._unsent >= wanted)
            self._news.wait_for(lambda: self._is_closed, GATHER_SECONDS)
            size = min(self._unsent, CHUNK_BYTES)
            is_last = self._is_closed and not self._is_refused and size == self._unsent
        return os.pread(self._file.fileno(), size, self._sent), str(is_last).lower()


class Job:
    """One lease and what is done under it, until its completion is acknowledged."""

    def __init__(
        self, claimed: Mapping[str, Any], session_id: str, new_api: Callable[[], Api]
    ) -> None:
        self.new_api, self._api, self._session_id = new_api, new_api(), session_id
        self._attempt, self._lease = claimed["attempt"], claimed["lease"]
        self.lease_token, self.path = claimed["lease_token"], f"/v1/leases/{self._lease['id']}"
        self.work: Work | None = None
        self._state: dict[str, Any] = {"phase": "executing"}
        self._news, self._over = threading.Event(), threading.Event()
        self._past_at = float("inf")

    def do(self) -> bool:
        """Do it; False when it was not to be begun."""
        name = f"attempt {self._attempt['id']}"
        started = self._start()
        say(f"{name} begins" if started.ok else f"{name} is not begun: {started.reason}")
        if not started.ok:
            return False
        word = self._execute(started.fields["heartbeat_every_seconds"])
        answer = self._api.insist("POST", f"{self.path}:complete", word, self.lease_token)
        self._over.set()
        self._news.set()
        say(f"{name} {word['outcome']}" + ("" if answer.ok else f", refused: {answer.reason}"))
        return True

    def _start(self) -> Answer:
        """Nothing is touched before this. A 200 to an old question may have lapsed: ask again."""
        while True:
            answer = self._api.insist("POST", f"{self.path}:start", None, self.lease_token)
            age = time.monotonic() - answer.sent_at
            if not answer.ok or age <= answer.fields["lease_seconds"] / 2:
                return answer

    def _execute(self, beat_seconds: float) -> dict[str, Any]:
        """Run the script, beat and send its output meanwhile; how it went, as a completion."""
        spec = self._attempt["job_spec_ref"]
        script = spec.get("script", spec.get("command"))
        if not isinstance(script, str):
            return _failed("validation", "There is neither a script nor a command to run.")
        began_at = time.monotonic()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            try:
                work = self.work = Work(script, folder, self._attempt["id"])
            except OSError as error:
                return _failed("internal", f"The script could not be begun: {error}")
            threading.Thread(target=self._beat, args=[work, beat_seconds], daemon=True).start()
            threading.Thread(target=self._listen, args=[work], daemon=True).start()
            pipes = {"stdout": work.process.stdout, "stderr": work.process.stderr}
            streams = [Stream(self, name, pipe) for name, pipe in pipes.items() if pipe]
            code = work.wait(self._seconds_left())
            ended_at = time.monotonic()
            self._past_at = ended_at + 2 * LOG_SECONDS
            if Path(folder, outputs.FOLDER).is_dir() and not work.ended_by:
                self._tell(phase="uploading_artifacts")
                outputs.record(
                    self._api, self.path, self.lease_token, Path(folder), code, self.is_past
                )
        self._tell(phase="completing")
        for stream in streams:
            stream.sending.join(max(ended_at + LOG_SECONDS - time.monotonic(), 0))
        return _word(work.ended_by, code, ended_at - began_at)

    def _seconds_left(self) -> float:
        """Of the attempt's time, which began with its first start. Both times are the service's."""
        timeout = float(self._attempt["timeout_seconds"])
        if self._attempt["started_at"] is None:
            return timeout
        claimed_at = datetime.fromisoformat(self._lease["created_at"])
        started_at = datetime.fromisoformat(self._attempt["started_at"])
        return max(timeout - (claimed_at - started_at).total_seconds(), 1.0)

    def _beat(self, work: Work, beat_seconds: float) -> None:
        """Beat until the completion is acknowledged, however long that takes."""
        api, sequence = self.new_api(), 0
        while not self._over.is_set():
            self._news.clear()
            sequence += 1
            body = {"session_id": self._session_id, "sequence": sequence, **self._state}
            path, patience = f"{self.path}:heartbeat", max(beat_seconds, 1.0)
            answer = api.call("POST", path, body, self.lease_token, patience)
            if not self._obey(answer, work):
                return
            beat_seconds = answer.fields.get("heartbeat_every_seconds", beat_seconds)
            # News comes early and silence is asked again soon, but never twice in a second.
            self._over.wait(min(beat_seconds, 1.0))
            if not answer.is_temporary:
                self._news.wait(max(answer.sent_at + beat_seconds - time.monotonic(), 0))

    def _listen(self, work: Work) -> None:
        """Hear of a cancellation, or of the lease's end, as soon as the service knows of it."""
        api, path = self.new_api(), f"{self.path}/signals?wait_seconds={WAIT_SECONDS}"
        patience = WAIT_SECONDS + CALL_SECONDS
        while not self._over.is_set() and not work.ended_by:
            answer = api.insist("GET", path, None, self.lease_token, patience)
            if not self._obey(answer, work) or not answer.ok:
                return
            if answer.came_early:
                self._over.wait(1.0)

    def _obey(self, answer: Answer, work: Work) -> bool:
        """Do as the service says; False once the lease has ended."""
        if answer.orders_stop and not self._over.is_set():
            work.end(f"stop, {answer.reason}", 0)
        if answer.fields.get("action") == "cancel" and not work.ended_by:
            work.end("cancelled")
        return not answer.orders_stop

    def note_step(self, text: bytes) -> None:
        """Tell of the last step in the text, as one that begins."""
        for step in list(STEP.finditer(text))[-1:]:
            percent = 100 * max(int(step[1]) - 1, 0) // max(int(step[2]), 1)
            self._tell(progress_percent=min(percent, 100), message=str(step[0], errors="replace"))

    def _tell(self, **facts: Any) -> None:
        self._state = {**self._state, **facts}
        self._news.set()

    def is_past(self) -> bool:
        """Whether the last of the log has had its time."""
        return time.monotonic() > self._past_at


def _failed(category: str, message: str) -> dict[str, Any]:
    return {"outcome": "failed", "failure_category": category, "failure_message": message}


def _word(ended_by: str, code: int, seconds: float) -> dict[str, Any]:
    """The completion of a script that ended with this code, by itself or by somebody else."""
    result = {"exit_code": code, "duration_seconds": round(seconds, 3)}
    if ended_by in {"cancelled", "timed_out"}:
        message = f"The runner ended it ({ended_by}) after {seconds:.1f} s."
        return {"outcome": ended_by, "failure_message": message, "result": result}
    if ended_by:
        return {**_failed("internal", f"The runner ended it: {ended_by}."), "result": result}
    if code:
        return {**_failed("command_failed", f"It ended with {code}."), "result": result}
    return {"outcome": "succeeded", "result": result}


class Runner:
    """One session: it registers, then takes one job after the other."""

    def __init__(self, options: argparse.Namespace) -> None:
        token = Token(options)
        self._options, self._new_api = options, partial(Api, options, token)
        self._api, self._session_id = self._new_api(), str(uuid.uuid4())
        self._job: Job | None = None
        self._is_stopping = False

    def run(self) -> None:
        """Work until told to stop, or with --once until one job was done."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._register()
        while not self._is_stopping:
            for claimed in self._claim():
                self._job = Job(claimed, self._session_id, self._new_api)
                if self._job.do() and self._options.once:
                    self._is_stopping = True
                self._job = None

    def _on_signal(self, *_: object) -> None:
        if self._job is None:
            sys.exit(0)  # hanging up tells the service to give this claim nothing
        if self._is_stopping and self._job.work is None:
            sys.exit(1)  # nothing was begun, and the lease lapses by itself
        if self._is_stopping and self._job.work is not None:
            self._job.work.end("it was told to stop")
        self._is_stopping = True

    def _register(self) -> None:
        options = self._options
        profile = {"runner_kind": options.kind, "version": "1.0.0", "zone": options.zone}
        body = {**profile, "session_id": self._session_id, "capabilities": options.capability}
        answer = self._api.insist("PUT", f"/v1/runners/{options.id}", body)
        if not answer.ok:
            sys.exit(f"Not registered: {answer.reason}. {answer.fields.get('detail', '')}")
        say(f"{options.id} is registered")

    def _claim(self) -> list[dict[str, Any]]:
        """One claim. Until it is answered the same request_id asks again, so no lease is lost."""
        path = f"/v1/runners/{self._options.id}/leases:claim"
        body = {"session_id": self._session_id, "request_id": str(uuid.uuid4()), "max_leases": 1}
        body |= {"wait_seconds": WAIT_SECONDS}
        answer = self._api.insist("POST", path, body, patience=WAIT_SECONDS + CALL_SECONDS)
        if answer.reason in {"session-unknown", "runner-not-found"}:
            self._register()
        elif not answer.ok and answer.reason != "token-key-retired":
            sys.exit(f"No more work here: {answer.reason}. {answer.fields.get('detail', '')}")
        leases = [one for one in answer.fields.get("leases", []) if one["lease_token"]]
        if not leases and answer.came_early:
            time.sleep(1.0)
        return leases


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description="Take jobs, run them with bash, say how it went.")
    parser.add_argument("--url", required=True, help="such as https://localhost:8443")
    parser.add_argument("--ca", help="CA of the service's certificate (default: the system's)")
    token = parser.add_mutually_exclusive_group(required=True)
    token.add_argument("--token-file", help="file that holds the identity token")
    token.add_argument("--token-command", help="command that prints it")
    token.add_argument("--token-url", help="metadata server that answers with it")
    parser.add_argument("--id", required=True, help="this runner, and no other process")
    parser.add_argument("--kind", required=True, help="such as ssh")
    parser.add_argument("--capability", action="append", required=True, help="may be repeated")
    parser.add_argument("--zone", help="where it runs")
    parser.add_argument("--once", action="store_true", help="end after one job")
    Runner(parser.parse_args()).run()


if __name__ == "__main__":
    main()
