"""A whole runner in one file of plain Python 3.11: take jobs, run them with bash, say how it went.

    python3 demo/runner.py --url https://localhost:8443 --ca .dev/tls/ca.pem \
        --token-command ".venv/bin/execution-plane dev token --role runner" \
        --id my-runner --kind ssh --capability ssh.command.run

Meant to be copied; docs/runner-protocol.md has the rules that it keeps. A job's specification is
{"script": "..."} or {"command": "..."}; "step 2 of 5" in its output is its progress. The first
SIGTERM or Ctrl-C lets the job end and takes no other; the second one ends the job too.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import shlex
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

CLAIM_WAIT_SECONDS = 20  # how long the service may hold a claim back until there is work
CALL_SECONDS = 10.0  # patience with any other call
GRACE_SECONDS = 10.0  # from SIGTERM to SIGKILL
LOG_SECONDS = 60.0  # the outcome waits so long for the last of the log
TOKEN_SECONDS = 300.0
CHUNK_BYTES = 1024 * 1024
SPOOL_BYTES = 256 * 1024 * 1024  # unsent output kept on disk; beyond it the job has to wait
GATHER_SECONDS = 0.2  # few chunks from a chatty job, and it can still be followed
# Sits in the job's process group and kills it when the runner is gone, kill -9 included: the
# kernel then closes the runner's end of the pipe.
GUARD = 'trap "" TERM INT HUP; read -r _; kill -KILL 0'
STEP = re.compile(rb"\bstep (\d{1,6}) of (\d{1,6})\b[^\r\n]{0,200}")


def say(text: str) -> None:
    """A line about the runner itself."""
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Answer:
    """What one call was answered, 0 standing for silence. `sent_at` is on the monotonic clock."""

    status: int
    fields: Mapping[str, Any]
    sent_at: float
    retry_after: float = 0.0

    @property
    def ok(self) -> bool:
        """Done."""
        return self.status == http.client.OK

    @property
    def reason(self) -> str:
        """Why it was not done."""
        return str(self.fields.get("reason", self.status))

    @property
    def is_temporary(self) -> bool:
        """The same call may succeed later, and every call of a runner may be repeated."""
        return self.status in {0, 401, 408, 425, 429} or self.status >= 500  # noqa: PLR2004

    @property
    def orders_stop(self) -> bool:
        """The lease is over: the work must not go on."""
        gone = self.reason in {"lease-not-found", "lease-token-invalid"}
        return gone or self.fields.get("action") == "stop"


class Token:
    """The identity token, read again every five minutes, or at once when `good_until` is set to 0."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._lock = options, threading.Lock()
        self._text, self.good_until = "", 0.0

    def get(self) -> str:
        """The token; OSError or SubprocessError when there is none to be had."""
        with self._lock:
            if time.monotonic() >= self.good_until:
                self._text = self._read().strip()
                self.good_until = time.monotonic() + TOKEN_SECONDS
            return self._text

    def _read(self) -> str:
        if self._options.token_file:
            return Path(self._options.token_file).read_text(encoding="ascii")
        if self._options.token_url:  # a cloud's metadata server
            headers = {"Metadata-Flavor": "Google"}
            request = urllib.request.Request(self._options.token_url, headers=headers)  # noqa: S310
            with urllib.request.urlopen(request, timeout=CALL_SECONDS) as answer:  # noqa: S310
                return str(answer.read(), "ascii")
        argv = shlex.split(self._options.token_command)
        ran = subprocess.run(argv, stdout=subprocess.PIPE, check=True, timeout=30)  # noqa: S603
        return str(ran.stdout, "ascii")


class Api:
    """One connection to the service, for one thread."""

    def __init__(self, options: argparse.Namespace, token: Token) -> None:
        url = urlsplit(options.url)
        self._token, self._is_out = token, False
        self._connection = http.client.HTTPConnection(url.netloc)
        if url.scheme == "https":
            trust = ssl.create_default_context(cafile=options.ca)
            self._connection = http.client.HTTPSConnection(url.netloc, context=trust)

    def call(
        self, method: str, path: str, body: Any = None, lease: str = "", patience: float = 0.0
    ) -> Answer:
        """One try. The body is JSON, or bytes as they are; `lease` is the token of a lease."""
        sent_at = time.monotonic()
        try:
            self._connection.timeout = patience or CALL_SECONDS
            if self._connection.sock is not None:
                self._connection.sock.settimeout(patience or CALL_SECONDS)
            data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
            headers = {"Authorization": f"Bearer {self._token.get()}", "Lease-Token": lease}
            self._connection.request(method, path, data, headers)
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException, subprocess.SubprocessError) as error:
            self._connection.close()
            return self._noted(Answer(0, {"reason": f"no answer: {error}"}, sent_at))
        if response.status == http.client.UNAUTHORIZED:
            self._token.good_until = 0.0
        fields = {}
        with suppress(ValueError):
            fields = json.loads(content)
        after = response.headers.get("Retry-After", "")
        pause = float(after) if after.isdecimal() else 0.0
        return self._noted(Answer(response.status, fields, sent_at, pause))

    def insist(self, *call: Any, patience: float = 0.0, until: Callable[[], bool] = bool) -> Answer:
        """Repeat one call as it is until it is answered for good, or `until` says to give up."""
        longest = 0.2
        while True:
            answer = self.call(*call, patience=patience)
            if not answer.is_temporary or until():
                return answer
            # Random, so that a fleet does not come back in step after an outage.
            time.sleep(answer.retry_after + random.uniform(0, longest))  # noqa: S311
            longest = min(2 * longest, 10.0)

    def _noted(self, answer: Answer) -> Answer:
        if answer.is_temporary != self._is_out:
            self._is_out = answer.is_temporary
            say(f"trying again: {answer.reason}" if self._is_out else "the service is back")
        return answer


class Work:
    """One script in a process group of its own. `ended_by` says who ended it, if not itself."""

    def __init__(self, script: str, folder: str, attempt_id: str) -> None:
        pipe, null, self.ended_by = subprocess.PIPE, subprocess.DEVNULL, ""
        self._lock, self._is_gone = threading.Lock(), False
        self.process = subprocess.Popen(
            ["bash", "-c", script],  # noqa: S607
            **{"stdin": null, "stdout": pipe, "stderr": pipe, "process_group": 0},
            **{"cwd": folder, "env": {**os.environ, "EXECUTION_PLANE_ATTEMPT_ID": attempt_id}},
        )
        self._guard = subprocess.Popen(
            ["sh", "-c", GUARD],  # noqa: S607
            **{"stdin": pipe, "stdout": null, "stderr": null, "process_group": self.process.pid},
        )

    def end(self, by: str, grace_seconds: float = GRACE_SECONDS) -> None:
        """SIGTERM to the group, SIGKILL after the grace. The first reason given counts."""
        self.ended_by = self.ended_by or by
        self._send(signal.SIGTERM)
        killer = threading.Timer(grace_seconds, self._send, [signal.SIGKILL])
        killer.daemon = True
        killer.start()

    def wait(self, seconds: float) -> int:
        """The exit code as a shell tells it. What the script left running is ended with it."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.end("timed_out")
            code = self.process.wait()
        self._send(signal.SIGKILL)
        with self._lock:
            self._is_gone = True
        self._guard.wait()
        return 128 - code if code < 0 else code

    def _send(self, number: signal.Signals) -> None:
        with self._lock, suppress(ProcessLookupError, PermissionError):
            if not self._is_gone:  # until then the guard keeps the group's number taken
                os.killpg(self.process.pid, number)


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

    def _read(self) -> None:
        line = b""
        while data := os.read(self._pipe.fileno(), 65_536):
            whole, _, line = (line[-1000:] + data).rpartition(b"\n")
            self._job.note_step(whole)
            with self._news:
                self._news.wait_for(lambda: self._is_refused or self._unsent < SPOOL_BYTES)
                self._size += os.pwrite(self._file.fileno(), data, self._size)
                self._news.notify_all()
        with self._news:
            self._is_closed = True
            self._news.notify_all()

    @property
    def _unsent(self) -> int:
        return self._size - self._sent

    def _send(self) -> None:
        wanted = 1
        while True:
            chunk, final = self._next_chunk(wanted)
            path = f"/logs/{self._name}?offset={self._sent}&final={str(final).lower()}"
            call = ("POST", self._job.path + path, chunk, self._job.lease_token)
            answer = self._api.insist(*call, until=self._job.is_past)
            with self._news:
                self._is_refused = not answer.ok and answer.reason != "log-gap"
                self._sent = answer.fields.get("next_offset", self._sent)
                self._news.notify_all()
            if self._is_refused:
                say(f"{self._name} ends at byte {self._sent} in the service: {answer.reason}")
            if self._is_refused or answer.fields.get("final"):
                return
            wanted = len(chunk) + 1 if answer.fields.get("need_more") else 1

    def _next_chunk(self, wanted: int) -> tuple[bytes, bool]:
        """The bytes to send next, and whether they are the last ones."""
        with self._news:
            self._news.wait_for(lambda: self._is_closed or self._unsent >= wanted)
            self._news.wait_for(lambda: self._is_closed, GATHER_SECONDS)
            size = min(self._unsent, CHUNK_BYTES)
            final = self._is_closed and size == self._unsent
        return os.pread(self._file.fileno(), size, self._sent), final


class Job:
    """One lease and what is done under it, until its completion is acknowledged."""

    def __init__(
        self, claimed: Mapping[str, Any], session_id: str, new_api: Callable[[], Api]
    ) -> None:
        self.new_api, self._api, self._session_id = new_api, new_api(), session_id
        self._attempt, self._lease = claimed["attempt"], claimed["lease"]
        self.lease_token, self.path = claimed["lease_token"], f"/v1/leases/{self._lease['id']}"
        self._beat_seconds = 0.0
        self.work: Work | None = None
        self._state: dict[str, Any] = {"phase": "executing"}
        self._news, self._over = threading.Event(), threading.Event()
        self._past_at = float("inf")

    def do(self) -> bool:
        """Do it; False when it was not to be begun."""
        name = f"attempt {self._attempt['id']}"
        answer = self._start()
        say(f"{name} begins" if answer.ok else f"{name} is not begun: {answer.reason}")
        if not answer.ok:
            return False
        self._beat_seconds = answer.fields["heartbeat_every_seconds"]
        word = self._execute()
        answer = self._api.insist("POST", f"{self.path}:complete", word, self.lease_token)
        self._over.set()
        self._news.set()
        say(f"{name} {word['outcome']}" + ("" if answer.ok else f", refused: {answer.reason}"))
        return True

    def _start(self) -> Answer:
        """Nothing is touched before this. A 200 to an old question is not good enough: ask again."""
        while True:
            answer = self._api.insist("POST", f"{self.path}:start", None, self.lease_token)
            age = time.monotonic() - answer.sent_at
            if not answer.ok or age <= answer.fields["lease_seconds"] / 2:
                return answer

    def _execute(self) -> dict[str, Any]:
        """Run the script, beat and send its output meanwhile; how it went, as a completion."""
        began_at = time.monotonic()
        spec = self._attempt["job_spec_ref"]
        script = spec.get("script", spec.get("command"))
        if not isinstance(script, str):
            return _failed("validation", "There is neither a script nor a command to run.")
        with tempfile.TemporaryDirectory() as folder:
            work = self.work = Work(script, folder, self._attempt["id"])
            threading.Thread(target=self._beat, args=[work], daemon=True).start()
            pipes = {"stdout": work.process.stdout, "stderr": work.process.stderr}
            streams = [Stream(self, name, pipe) for name, pipe in pipes.items() if pipe]
            code = work.wait(self._seconds_left())
        ended_at = time.monotonic()
        self._past_at = ended_at + 2 * LOG_SECONDS
        self._tell(phase="completing")
        for stream in streams:
            stream.sending.join(max(ended_at + LOG_SECONDS - time.monotonic(), 0))
        return _word(work.ended_by, code, ended_at - began_at)

    def _seconds_left(self) -> float:
        """Of the attempt's time, which began with its first lease. Both times are the service's."""
        timeout = float(self._attempt["timeout_seconds"])
        if self._attempt["started_at"] is None:
            return timeout
        times = (self._lease["created_at"], self._attempt["started_at"])
        claimed_at, started_at = (datetime.fromisoformat(time) for time in times)
        return max(timeout - (claimed_at - started_at).total_seconds(), 1.0)

    def _beat(self, work: Work) -> None:
        """Until the completion is acknowledged, however long that takes."""
        api, sequence = self.new_api(), 0
        while not self._over.is_set():
            self._news.clear()
            sequence += 1
            body = {"session_id": self._session_id, "sequence": sequence, **self._state}
            call = ("POST", f"{self.path}:heartbeat", body, self.lease_token)
            answer = api.call(*call, patience=max(self._beat_seconds, 1.0))
            if answer.orders_stop:
                return None if self._over.is_set() else work.end(f"stop: {answer.reason}", 0)
            self._beat_seconds = answer.fields.get("heartbeat_every_seconds", self._beat_seconds)
            if answer.fields.get("action") == "cancel" and not work.ended_by:
                work.end("cancelled")
            # News may be told early, and silence asked again, but not twice within a second.
            self._over.wait(min(self._beat_seconds, 1.0))
            if answer.ok:
                self._news.wait(max(answer.sent_at + self._beat_seconds - time.monotonic(), 0))
        return None

    def note_step(self, text: bytes) -> None:
        """Tell of the last step in the text as one that begins."""
        for step in list(STEP.finditer(text))[-1:]:
            percent = 100 * max(int(step[1]) - 1, 0) // max(int(step[2]), 1)
            self._tell(progress_percent=min(percent, 100), message=str(step[0], errors="replace"))

    def _tell(self, **facts: Any) -> None:
        self._state |= facts
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
        return {"outcome": ended_by, "failure_message": f"Ended: {ended_by}.", "result": result}
    if ended_by:
        return {**_failed("internal", f"The runner ended it: {ended_by}."), "result": result}
    if code:
        return {**_failed("command_failed", f"It ended with {code}."), "result": result}
    return {"outcome": "succeeded", "result": result}


class Runner:
    """One session: registers, then takes one job after the other."""

    def __init__(self, options: argparse.Namespace) -> None:
        token = Token(options)
        self._options, self._new_api = options, lambda: Api(options, token)
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
                self._is_stopping |= self._job.do() and self._options.once
                self._job = None

    def _on_signal(self, *_: object) -> None:
        if self._job is None:
            sys.exit(0)  # hanging up tells the service to give this claim nothing
        if self._is_stopping and self._job.work is not None:
            self._job.work.end("told to stop")
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
        """One claim: until it is answered the same request_id asks again, so no lease is lost."""
        path = f"/v1/runners/{self._options.id}/leases:claim"
        body = {"session_id": self._session_id, "request_id": str(uuid.uuid4()), "max_leases": 1}
        body |= {"wait_seconds": CLAIM_WAIT_SECONDS}
        answer = self._api.insist("POST", path, body, patience=CLAIM_WAIT_SECONDS + CALL_SECONDS)
        if answer.reason in {"session-unknown", "runner-not-found"}:
            self._register()
        elif not answer.ok and answer.reason != "token-key-retired":
            sys.exit(f"No more work here: {answer.reason}. {answer.fields.get('detail', '')}")
        return [one for one in answer.fields.get("leases", []) if one["lease_token"]]


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
