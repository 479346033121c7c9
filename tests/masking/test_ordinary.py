"""What is no secret stays as it is."""

import pytest

from tests.masking import texts


@pytest.mark.parametrize("line", texts.ORDINARY.splitlines())
def test_ordinary_line_is_unchanged(masker, line):
    assert masker.mask_text(line + "\n")[0] == line + "\n"


def test_ordinary_log_is_unchanged(masker):
    log = texts.ordinary(4 << 20)

    assert masker.mask_bytes(log).data == log
    assert masker.mask_bytes(texts.ORDINARY.encode()).count == 0


def test_near_misses_are_unchanged(masker):
    log = texts.near_misses(4 << 20)

    assert masker.mask_bytes(log).kinds == {}


def test_every_byte_and_every_pair_of_bytes_is_unchanged(masker):
    data = b"".join(bytes((first, second)) for first in range(256) for second in range(256))

    assert masker.mask_bytes(data).data == data
