"""Everything here starts and kills processes of its own, and takes its time: `make test-kill`."""

from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.kill)
