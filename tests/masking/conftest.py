"""One masker for all of these tests; none of them needs a server."""

import pytest

from app.domain.masking import Masker
from app.domain.masking.analysis import Engine


@pytest.fixture(scope="session")
def engine():
    return Engine()


@pytest.fixture(scope="session")
def masker(engine):
    return Masker(engine)
