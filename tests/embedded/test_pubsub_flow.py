"""Window, pause and retry delay: plain arithmetic, without a clock."""

from __future__ import annotations

import pytest

from app.embedded.pubsub_flow import PushBackoff, PushTuning, PushWindow
from app.embedded.pubsub_model import RetryPolicy


def test_window_starts_small_and_doubles_with_each_window_of_acks():
    window = PushWindow(PushTuning(window_start=4))

    sizes = []
    for _ in range(4):
        for _ in range(window.size):
            window.acked(seconds=0.01)
        sizes.append(window.size)

    assert sizes == [8, 16, 32, 64]


def test_window_grows_by_one_a_window_once_it_is_large():
    window = PushWindow(PushTuning(window_start=8, window_linear_from=8))

    for _ in range(9):
        window.acked(seconds=0.01)

    assert window.size == 9


def test_large_window_falls_back_when_the_endpoint_is_slow():
    window = PushWindow(PushTuning(window_start=8, window_linear_from=8))
    for _ in range(100):
        window.acked(seconds=0.01)
    assert window.size > 12

    for _ in range(50):
        window.acked(seconds=5.0)

    assert window.size == 8


def test_window_is_halved_by_a_failure_and_never_closes():
    window = PushWindow(PushTuning(window_start=16))

    sizes = []
    for _ in range(6):
        window.failed()
        sizes.append(window.size)

    assert sizes == [8, 4, 2, 1, 1, 1]


def test_window_never_exceeds_its_maximum():
    window = PushWindow(PushTuning(window_start=4, window_max=2))

    window.acked(seconds=0.01)

    assert window.size == 2


def test_single_refusal_among_acks_stops_nothing():
    backoff = PushBackoff(PushTuning())

    for _ in range(100):
        backoff.nacked(now=0.0)
        for _ in range(4):
            backoff.acked()

    assert backoff.remaining(now=0.0) == 0.0


def test_refusals_stop_delivery_for_100_ms_to_60_s():
    backoff = PushBackoff(PushTuning())
    now, pauses = 0.0, []

    for _ in range(13):
        backoff.nacked(now)
        pauses.append(round(backoff.remaining(now), 1))
        now += backoff.remaining(now)

    assert pauses == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0]


def test_refusals_that_arrive_during_a_pause_do_not_lengthen_it():
    backoff = PushBackoff(PushTuning(tolerated_nacks=0))
    backoff.nacked(now=10.0)

    for _ in range(64):
        backoff.nacked(now=10.05)

    assert backoff.remaining(now=10.05) == pytest.approx(0.05)


def test_acks_shorten_the_next_pause():
    tuning = PushTuning(tolerated_nacks=0, relief_per_ack=1.0)
    backoff = PushBackoff(tuning)
    now = 0.0
    for _ in range(4):
        backoff.nacked(now)
        now += backoff.remaining(now)
    assert backoff.pause_seconds == pytest.approx(0.8)

    for _ in range(4):
        backoff.acked()
    assert backoff.pause_seconds == 0.0
    backoff.nacked(now)

    assert backoff.pause_seconds == pytest.approx(0.1)


def test_retry_delay_doubles_between_its_bounds():
    policy = RetryPolicy(minimum_seconds=10, maximum_seconds=600)

    delays = [policy.delay(nacks, jitter=0.0) for nacks in range(1, 9)]

    assert delays == [10, 20, 40, 80, 160, 320, 600, 600]


def test_jitter_shortens_a_retry_delay_but_not_below_the_minimum():
    policy = RetryPolicy(minimum_seconds=10, maximum_seconds=600)

    assert policy.delay(1, jitter=0.99) == 10
    assert policy.delay(3, jitter=0.5) == pytest.approx(36)
    assert policy.delay(100_000, jitter=0.5) == pytest.approx(540)
