"""Which message a subscription pushes next: order, retries, repeats, and lines of ordering keys.

Nothing here waits or knows the time: moments are monotonic seconds that come in as arguments. Coins
are drawn when a message is added, so the same publications under the same seed are repeated and
reordered alike, however long the receiver takes.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from dataclasses import dataclass, field

from app.embedded.pubsub_ledger import LedgerEntry
from app.embedded.pubsub_model import Message

OVERTAKERS = 16  # at most so many later messages overtake a reordered or repeated one
FOLLOWERS = 3  # at most so many later messages of its key are sent again with a repeated one


@dataclass(frozen=True, slots=True)
class Coins:
    """Probabilities, per message, of being sent twice and of being overtaken by later ones."""

    duplicate_rate: float = 0.0
    reorder_rate: float = 0.0


@dataclass(eq=False, slots=True)
class Pending:
    """A message on its way through one subscription."""

    message: Message
    entry: LedgerEntry
    nacks: int = 0
    repeat_after: int | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Push:
    """One push to make. A repeat is sent even when its message is settled, and never retried."""

    pending: Pending
    repeat: bool = False


@dataclass(slots=True)
class _Line:
    """Messages of one ordering key: the head is out, others wait; `passed` were acked lately."""

    waiting: deque[Pending] = field(default_factory=deque)
    passed: deque[Pending] = field(default_factory=lambda: deque(maxlen=FOLLOWERS + 1))

    def advance(self) -> None:
        """Take the head away; go back to an earlier message if that one is to be repeated."""
        head = self.waiting.popleft()
        if head.entry.acked:
            self.passed.append(head)
        for followers, earlier in enumerate(reversed(self.passed)):
            wanted = earlier.repeat_after
            if wanted is not None and (wanted <= followers or not self.waiting):
                earlier.repeat_after = None
                self._go_back(followers + 1)
                return

    def _go_back(self, count: int) -> None:
        for _ in range(count):
            self.waiting.appendleft(self.passed.pop())


class PushQueue:
    """The backlog of one subscription. Every push taken must be given back by `done` or `retry`."""

    def __init__(self, *, ordered: bool, coins: Coins, rng: random.Random) -> None:
        self._ordered = ordered
        self._coins = coins
        self._rng = rng
        self._number = itertools.count()
        self._ready: list[tuple[float, int, Push]] = []
        self._delayed: list[tuple[float, int, Push]] = []
        self._lines: dict[str, _Line] = {}

    def add(self, pending: Pending) -> None:
        """Put a new message at the end, or where the coins say."""
        late = self._rng.random() < self._coins.reorder_rate
        twice = self._rng.random() < self._coins.duplicate_rate
        overtakers, later = self._rng.randint(1, OVERTAKERS), self._rng.randint(1, OVERTAKERS)
        if self._ordered and pending.message.ordering_key:
            pending.repeat_after = overtakers % (FOLLOWERS + 1) if twice else None
            self._join_line(pending)
            return
        self._make_ready(Push(pending), places_back=overtakers if late else 0)
        if twice:
            self._make_ready(Push(pending, repeat=True), places_back=later)

    def take(self, now: float) -> Push | None:
        """The next push that is due, or None."""
        while self._delayed and self._delayed[0][0] <= now:
            self._make_ready(heapq.heappop(self._delayed)[2], places_back=0)
        while self._ready:
            push = heapq.heappop(self._ready)[2]
            entry = push.pending.entry
            if not entry.dead_lettered and (push.repeat or not entry.settled):
                return push
        return None

    def retry(self, push: Push, due: float) -> None:
        """Send it again from the moment `due` on. Its ordering key, if any, stays blocked."""
        heapq.heappush(self._delayed, (due, next(self._number), push))

    def done(self, push: Push) -> None:
        """Nothing more hangs on this push: the next message of its ordering key may go."""
        key = push.pending.message.ordering_key
        if self._ordered and key:
            line = self._lines[key]
            line.advance()
            self._send_head(key, line)

    def next_due(self) -> float | None:
        """When the next delayed push becomes due; None when there is none."""
        return self._delayed[0][0] if self._delayed else None

    def __bool__(self) -> bool:
        """Whether a push waits that is not blocked by one in flight."""
        return bool(self._ready or self._delayed)

    def __len__(self) -> int:
        """Pushes that wait, those in line behind an ordering key included."""
        in_line = sum(len(line.waiting) - 1 for line in self._lines.values())
        return len(self._ready) + len(self._delayed) + in_line

    def _join_line(self, pending: Pending) -> None:
        key = pending.message.ordering_key
        line = self._lines.setdefault(key, _Line())
        line.waiting.append(pending)
        if len(line.waiting) == 1:
            self._send_head(key, line)

    def _send_head(self, key: str, line: _Line) -> None:
        if not line.waiting:
            del self._lines[key]
            return
        head = line.waiting[0]
        self._make_ready(Push(head, repeat=head.entry.acked), places_back=0)

    def _make_ready(self, push: Push, places_back: int) -> None:
        number = next(self._number)
        rank = number + places_back + (0.5 if places_back else 0)
        heapq.heappush(self._ready, (rank, number, push))
