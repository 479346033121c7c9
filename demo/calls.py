"""Calls to the service: one connection a thread, one answer a try, repeats where they help."""

from __future__ import annotations

import argparse
import http.client
import json
import random
import shlex
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

CALL_SECONDS = 10.0
TOKEN_SECONDS = 300.0
LONGEST_PAUSE_SECONDS = 10.0


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
        """It was done."""
        return self.status in {http.client.OK, http.client.CREATED}

    @property
    def reason(self) -> str:
        """Why it was not done."""
        return str(self.fields.get("reason", self.status))

    @property
    def is_temporary(self) -> bool:
        """The same call may succeed later. Every call of a runner may be repeated as it was."""
        return self.status in {0, 401, 408, 425, 429} or self.status >= 500  # noqa: PLR2004

    @property
    def came_early(self) -> bool:
        """A long poll that ends at once would be repeated in a tight loop: pause after it."""
        return time.monotonic() - self.sent_at < 1.0

    @property
    def orders_stop(self) -> bool:
        """The lease is over: the work must not go on."""
        gone = self.reason in {"lease-not-found", "lease-token-invalid"}
        return gone or self.fields.get("action") == "stop"


class Token:
    """The identity token, read again every five minutes, or at once after `forget`."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._lock = options, threading.Lock()
        self._text, self._good_until = "", 0.0

    def get(self) -> str:
        """The token; OSError or SubprocessError when there is none to be had."""
        with self._lock:
            if time.monotonic() >= self._good_until:
                self._text = self._read().strip()
                self._good_until = time.monotonic() + TOKEN_SECONDS
            return self._text

    def forget(self) -> None:
        """It was refused."""
        self._good_until = 0.0

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
        self,
        method: str,
        path: str,
        body: Any = None,
        lease_token: str = "",
        patience: float = CALL_SECONDS,
    ) -> Answer:
        """One try. The body is JSON, or bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        sent_at = time.monotonic()
        try:
            headers = {"Authorization": f"Bearer {self._token.get()}", "Lease-Token": lease_token}
            response, content = self._exchange(method, path, data, headers, patience)
        except (OSError, http.client.HTTPException, subprocess.SubprocessError) as error:
            self._connection.close()
            return self._noted(Answer(0, {"reason": f"no answer ({error})"}, sent_at))
        if response.status == http.client.UNAUTHORIZED:
            self._token.forget()
        fields = {}
        with suppress(ValueError):
            fields = json.loads(content)
        after = response.headers.get("Retry-After", "")
        pause = float(after) if after.isdecimal() else 0.0
        return self._noted(Answer(response.status, fields, sent_at, pause))

    def insist(
        self,
        method: str,
        path: str,
        body: Any = None,
        lease_token: str = "",
        patience: float = CALL_SECONDS,
        until: Callable[[], bool] = bool,
    ) -> Answer:
        """Repeat one call as it is until it is answered for good, or `until` says to give up."""
        longest = 0.2
        while True:
            answer = self.call(method, path, body, lease_token, patience)
            if not answer.is_temporary or until():
                return answer
            # Random, so that a fleet does not come back in step after an outage.
            time.sleep(answer.retry_after + random.uniform(0, longest))  # noqa: S311
            longest = min(2 * longest, LONGEST_PAUSE_SECONDS)

    def _exchange(
        self, method: str, path: str, data: bytes, headers: Mapping[str, str], patience: float
    ) -> tuple[http.client.HTTPResponse, bytes]:
        self._connection.timeout = patience
        if self._connection.sock is not None:
            self._connection.sock.settimeout(patience)
        self._connection.request(method, path, data, headers)
        response = self._connection.getresponse()
        return response, response.read()

    def _noted(self, answer: Answer) -> Answer:
        """Tell of an outage once, and of its end."""
        if answer.is_temporary != self._is_out:
            self._is_out = answer.is_temporary
            say(f"trying again: {answer.reason}" if self._is_out else "the service is back")
        return answer
