"""Random lives of attempts, checked after every step."""

from collections.abc import Iterator
from contextlib import AsyncExitStack

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from app.settings import load
from app.wiring import open_services
from tests.conftest import environment
from tests.lifecycle.machine import Bridge, LifecycleMachine

_COMMON = {
    "deadline": None,
    "database": None,
    "print_blob": True,
    "suppress_health_check": list(HealthCheck),
}
# A life is short enough to be read as it is; making it shorter would take minutes.
CI = settings(max_examples=20, stateful_step_count=25, phases=[Phase.generate], **_COMMON)
FULL = settings(max_examples=500, stateful_step_count=50, **_COMMON)


@pytest.fixture
def machine(make_database, objects, issuer) -> Iterator[type[LifecycleMachine]]:
    """The machine over a database of its own, on a loop of its own."""
    bridge, stack = Bridge(), AsyncExitStack()

    async def begin() -> None:
        dsn = await make_database()
        variables = environment(dsn, objects, issuer)
        LifecycleMachine.services = await stack.enter_async_context(open_services(load(variables)))
        LifecycleMachine.sql = await asyncpg.connect(dsn)
        stack.push_async_callback(LifecycleMachine.sql.close)

    LifecycleMachine.bridge = bridge
    bridge.run(begin())
    yield LifecycleMachine
    bridge.run(stack.aclose())
    bridge.stop()


def test_random_lives_keep_every_promise(machine):
    run_state_machine_as_test(machine, settings=CI)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_random_lives_keep_every_promise_at_length(machine):
    run_state_machine_as_test(machine, settings=FULL)
