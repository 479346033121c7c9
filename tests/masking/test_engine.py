"""The engines: two find the same, a bad one is not used, and without one nothing comes out."""

import gc
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.domain.masking import EngineUnusable, Masker, finder
from app.domain.masking.analysis import Engine, _detectors
from tests.masking import texts
from tests.masking.sender import byte_by_byte, send


@pytest.fixture(scope="session")
def re2_masker(engine):
    other = Engine.__new__(Engine)
    other.__dict__.update(engine.__dict__)
    other.finder = finder.Re2(engine._detectors)
    return Masker(other)


def inputs():
    yield texts.ORDINARY.encode()
    yield texts.ordinary(200_000)
    yield texts.near_misses(200_000)
    for seed in range(4):
        yield b"\n".join(text for text, _ in texts.samples(seed))
    chance = random.Random(7)
    for _ in range(60):
        yield b"".join(
            chance.choice(texts.REPEATED) + chance.randbytes(chance.randrange(4))
            for _ in range(chance.randrange(30))
        )


INPUTS = list(inputs())


@pytest.mark.parametrize("data", INPUTS, ids=[f"input {place}" for place in range(len(INPUTS))])
def test_both_engines_mask_the_same(masker, re2_masker, data):
    assert re2_masker.mask_bytes(data).data == masker.mask_bytes(data).data


def test_fallback_stores_the_same_in_any_pieces(re2_masker):
    data = b"login\nDB_PASSWORD=hunter22x\n" + texts.private_key(random.Random(1), 4) + b"\nend\n"

    assert send(re2_masker, data, byte_by_byte()) == re2_masker.mask_bytes(data).data


def test_engine_that_misses_a_canary_is_not_used(monkeypatch):
    found = finder.Vectorscan.find

    def blind(self, data, most):
        return [hit for hit in found(self, data, most) or [] if hit[2] != 17]

    monkeypatch.setattr(finder.Vectorscan, "find", blind)

    engine = Engine()

    assert engine.finder.name == "re2"
    assert "canary" in Masker(engine).prepare().problem


def test_without_an_engine_everything_is_withheld(monkeypatch):
    def none(_):
        raise EngineUnusable("no engine here")

    monkeypatch.setattr("app.domain.masking.finder.load", none)
    monkeypatch.setattr("app.domain.masking.masker._load", lambda: EngineUnusable("no engine"))
    masker = Masker()

    assert not masker.prepare().usable
    assert masker.mask_bytes(b"password=hunter22x").data == b"[withheld: masking failed]"
    assert masker.mask_text("password=hunter22x")[0] == "[withheld: masking failed]"
    assert "hunter22x" not in str(masker.mask_json({"password": "hunter22x"})[0])
    chunk = masker.mask_chunk(b"password=hunter22x", final=False)
    assert (chunk.accepted, chunk.masked.kinds) == (18, {"failed": 1})
    with pytest.raises(EngineUnusable):
        masker.safe_cut(b"text", final=False)


def test_fault_inside_withholds_the_text(masker, monkeypatch):
    def broken(*_):
        raise RuntimeError

    monkeypatch.setattr(masker._given, "analyze", broken, raising=False)

    assert masker.mask_bytes(b"password=hunter22x").data == b"[withheld: masking failed]"


def test_threads_share_one_masker(masker):
    data = [b"\n".join(text for text, _ in texts.samples(seed)) for seed in range(8)]
    expected = [masker.mask_bytes(text).data for text in data]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: masker.mask_bytes(text).data, data * 20))

    assert found == expected * 20


def test_every_detector_finds_its_canary_behind_any_padding(engine):
    detectors, _ = _detectors()

    for number, detector in enumerate(detectors):
        for padding in range(0, 70, 3):
            text = b"." * padding + b" " + detector.canary
            assert number in {hit[2] for hit in engine.finder.find(text, 10_000)}


def test_result_does_not_depend_on_the_hash_seed():
    program = (
        "import sys; from app.domain.masking import Masker; from tests.masking import texts;"
        "text = b'\\n'.join(text for text, _ in texts.samples(1));"
        "masked = Masker().mask_bytes(text, [b'hunter2', b'hunter2-prod', b'app', b'db.internal']);"
        "sys.stdout.buffer.write(masked.data + str(sorted(masked.kinds.items())).encode())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2", "12345")
    }

    assert len(outputs) == 1


def test_import_compiles_nothing():
    program = (
        "import sys; import app.domain.masking;"
        "assert 'pyperscan' not in sys.modules and 're2' not in sys.modules"
    )

    subprocess.run([sys.executable, "-c", program], check=True)


def test_lines_with_too_many_hits_are_withheld_and_others_are_not(masker):
    log = texts.ordinary(200_000)
    key = texts.private_key(random.Random(2))
    dense = b"\\u0022token %3d%3d\n" * 30_000

    masked = masker.mask_bytes(log + dense + key + b"\n" + dense + log)

    assert masked.kinds["withheld"] > 1000
    assert masked.data.startswith(log[:100_000])
    assert masked.data.endswith(log[-100_000:])
    for line in key.split(b"\n"):
        assert line not in masked.data


def fragments():
    yield from ([fragment] for fragment in texts.REPEATED)
    chance = random.Random(3)
    for _ in range(25):
        yield chance.sample(texts.REPEATED, chance.randrange(2, 6))


def best_time(masker, data):
    def once():
        begun = time.thread_time()
        masker.mask_bytes(data)
        return time.thread_time() - begun

    return min(once() for _ in range(3))


@pytest.mark.parametrize("parts", list(fragments()), ids=lambda parts: repr(b"".join(parts))[:40])
def test_time_grows_with_the_size_and_not_with_its_square(masker, parts):
    gc.collect()
    fragment = b"".join(parts)
    small, large = (texts.repeated(fragment, size) for size in (48 * 1024, 384 * 1024))

    # Eight times the size; a square would take 64 times as long.
    assert best_time(masker, large) < 28 * best_time(masker, small) + 0.02
