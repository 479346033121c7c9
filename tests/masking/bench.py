"""Measures the masking on this machine: python -m tests.masking.bench [megabytes]."""

# ruff: noqa: T201 - a program that prints

from __future__ import annotations

import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable

from app.domain.masking import Masker, finder
from app.domain.masking.analysis import Engine
from tests.masking import texts

MIB = 1 << 20


def rate(work: Callable[[bytes], object], data: bytes, chunk: int) -> float:
    """Megabytes a second, chunk by chunk; the best of three rounds."""
    best = 0.0
    for _ in range(3):
        begun = time.perf_counter()
        for at in range(0, len(data), chunk):
            work(data[at : at + chunk])
        best = max(best, len(data) / 1e6 / (time.perf_counter() - begun))
    return best


def timings(work: Callable[[bytes], object], data: bytes, chunk: int) -> tuple[float, float]:
    """The median and the 99th percentile of the milliseconds a chunk takes."""
    spans = []
    for at in range(0, len(data) - chunk + 1, chunk):
        begun = time.perf_counter()
        work(data[at : at + chunk])
        spans.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(spans), sorted(spans)[int(len(spans) * 0.99)]


def longest_gap(work: Callable[[], object]) -> float:
    """The longest time in milliseconds for which another thread did not get its turn."""
    gaps, done = [0.0], threading.Event()

    def beat() -> None:
        last = time.perf_counter()
        while not done.is_set():
            time.sleep(0.0005)
            now = time.perf_counter()
            gaps.append((now - last) * 1e3)
            last = now

    thread = threading.Thread(target=beat)
    thread.start()
    work()
    done.set()
    thread.join()
    return max(gaps)


def main(megabytes: int) -> None:
    """Print the table."""
    begun = time.perf_counter()
    masker = Masker(Engine())
    health = masker.prepare()
    print(f"{health.engine}, rules {health.rules}, ready in {time.perf_counter() - begun:.2f} s")
    log = texts.ordinary(megabytes * MIB)
    inputs = {
        "ordinary": log,
        "near misses": texts.near_misses(megabytes * MIB),
        "one letter": b"a" * (megabytes * MIB),
        "one line": log.replace(b"\n", b" "),
        "coloured": log.replace(b"[", b"\x1b[32m["),
    }
    exact = [f"exact-value-number-{number}".encode() for number in range(10)]
    print(f"{'MB/s':14}{'1 KiB':>9}{'64 KiB':>9}{'1 MiB':>9}{'4 MiB':>9}")
    for name, data in inputs.items():
        row = [rate(masker.mask_bytes, data[: size * 400], size) for size in (1024, 64 * 1024)]
        row += [rate(masker.mask_bytes, data, size) for size in (MIB, 4 * MIB)]
        print(f"{name:14}" + "".join(f"{value:9.0f}" for value in row))
    row = [
        rate(lambda part: masker.mask_bytes(part, exact), log[: size * 400], size)
        for size in (1024, 64 * 1024)
    ]
    row += [rate(lambda part: masker.mask_bytes(part, exact), log, size) for size in (MIB, 4 * MIB)]
    print(f"{'10 exact':14}" + "".join(f"{value:9.0f}" for value in row))
    chunked = rate(lambda part: masker.mask_chunk(part, final=False), log, MIB)
    print(f"{'mask_chunk':14}{'':18}{chunked:9.0f}")
    other = Engine()
    other.finder = finder.Re2(other._detectors)
    fallback = rate(Masker(other).mask_bytes, log[: 4 * MIB], MIB)
    print(f"{'re2 instead':14}{'':18}{fallback:9.0f}")
    p50, p99 = timings(masker.mask_bytes, log, 64 * 1024)
    print(f"64 KiB chunk: p50 {p50:.3f} ms, p99 {p99:.3f} ms")
    text = "leader renewed the lease of attempt 42 after 12 ms"
    count = 20_000
    begun = time.perf_counter()
    for _ in range(count):
        masker.mask_text(text)
    print(f"short text: {(time.perf_counter() - begun) / count * 1e6:.1f} us")
    print("hostile repeats, 1 MiB:")
    for fragment in texts.REPEATED:
        data = texts.repeated(fragment, MIB)
        speed = rate(masker.mask_bytes, data, MIB)
        gap = longest_gap(lambda data=data: masker.mask_bytes(data))
        small, _ = timings(masker.mask_bytes, data, 64 * 1024)
        print(f"  {fragment!r:40} {speed:7.1f} MB/s  gap {gap:5.1f} ms  64 KiB {small:6.2f} ms")
    print(f"peak RSS {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
