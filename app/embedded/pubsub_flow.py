"""How fast a subscription pushes: the window of requests in flight, and the pause after refusals.

Google publishes what these do and in which range, not their constants; the constants here are
this project's own and all of them are fields of `PushTuning`.
"""

from __future__ import annotations

from dataclasses import dataclass

FAST_SECONDS = 1.0  # above `window_linear_from` only endpoints faster than this get more


@dataclass(frozen=True, slots=True)
class PushTuning:
    """The constants of slow start and push backoff; the defaults span Google's published ranges."""

    window_start: int = 4
    window_linear_from: int = 3000
    window_max: int = 6000
    pause_min_seconds: float = 0.1
    pause_max_seconds: float = 60.0
    tolerated_nacks: float = 1.0
    relief_per_ack: float = 0.25


class PushWindow:
    """How many requests may be in flight at once.

    An ack adds one, so a window full of acks doubles it. From `window_linear_from` on a whole
    window of fast acks adds one, and a slow average takes it back there. A failure halves it, to
    one at the least.
    """

    def __init__(self, tuning: PushTuning) -> None:
        self._linear_from = tuning.window_linear_from
        self._max = float(tuning.window_max)
        self._size = min(float(tuning.window_start), self._max)
        self._mean_seconds = 0.0

    @property
    def size(self) -> int:
        """Requests allowed in flight now."""
        return int(self._size)

    def acked(self, seconds: float) -> None:
        """Count a success that took `seconds`."""
        self._mean_seconds += (seconds - self._mean_seconds) / 16
        if self._size < self._linear_from:
            self._size = min(self._max, self._size + 1)
        elif self._mean_seconds < FAST_SECONDS:
            self._size = min(self._max, self._size + 1 / self._size)
        else:
            self._size = float(self._linear_from)

    def failed(self) -> None:
        """Count a refusal, a timeout or an endpoint that could not be reached."""
        self._size = max(1.0, self._size / 2)


class PushBackoff:
    """The pause of a whole subscription after too many refusals.

    Refusals raise a score and acks lower it; above the tolerated score each refusal stops
    delivery, twice as long per point. Refusals that come in while it is stopped belong to the same
    trouble and add nothing.
    """

    def __init__(self, tuning: PushTuning) -> None:
        self._tuning = tuning
        self._score = 0.0
        self._until = 0.0
        self.pause_seconds = 0.0

    def remaining(self, now: float) -> float:
        """Seconds until delivery goes on; 0 when it is not stopped."""
        return max(0.0, self._until - now)

    def acked(self) -> None:
        """Count a success."""
        self._score = max(0.0, self._score - self._tuning.relief_per_ack)
        if self._score <= self._tuning.tolerated_nacks:
            self.pause_seconds = 0.0

    def nacked(self, now: float) -> None:
        """Count a refusal at the monotonic time `now`."""
        if now < self._until:
            return
        excess = self._score + 1 - self._tuning.tolerated_nacks
        if self.pause_seconds < self._tuning.pause_max_seconds:
            self._score += 1
        if excess > 0:
            doubled = self._tuning.pause_min_seconds * 2 ** min(excess - 1, 64)
            self.pause_seconds = min(self._tuning.pause_max_seconds, doubled)
            self._until = now + self.pause_seconds
