import os
import signal
import socket
import sys

from embedded_processes import is_alive, start_python, wait_gone

from app.embedded.guarded import Guarded, begin_log, clean_environment, end_leftover
from app.embedded.ports import (
    free_ports,
    holder_of,
    is_free,
    is_free_for_localhost,
    next_free_port,
)

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""

PARENT = """
import asyncio, sys
from pathlib import Path
from app.embedded.guarded import Guarded, clean_environment

async def main():
    sleeper = await Guarded.start(
        ["/bin/sleep", "600"], log_file=Path(sys.argv[1]), env=clean_environment()
    )
    print(sleeper.pid, sleeper._process.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def start(tmp_path, *argv, **settings):
    return await Guarded.start(argv, log_file=tmp_path / "log", env=clean_environment(), **settings)


async def test_command_runs_in_a_session_of_its_own_and_its_end_is_seen(tmp_path):
    process = await start(tmp_path, "/bin/sh", "-c", "echo said; echo more >&2; exit 7")

    assert await process.wait(5) == 7
    assert await process.stop() == 7
    assert (tmp_path / "log").read_text() == "said\nmore\n"


async def test_ctrl_c_does_not_reach_the_command(tmp_path):
    process = await start(tmp_path, "/bin/sleep", "600")

    assert os.getsid(process.pid) != os.getsid(0)

    assert await process.stop() == 128 + signal.SIGTERM


async def test_command_that_ignores_its_order_is_killed_after_its_grace(tmp_path):
    process = await start(tmp_path, sys.executable, "-c", STUBBORN, grace_seconds=0.2)
    while "ready" not in (tmp_path / "log").read_text():
        assert await process.wait(0.01) is None

    assert await process.stop() == 128 + signal.SIGKILL


async def test_command_that_does_not_exist_says_so_in_its_log(tmp_path):
    process = await start(tmp_path, "/no/such/program")

    assert await process.wait(5) == 127
    assert "/no/such/program" in (tmp_path / "log").read_text()
    await process.stop()


def test_kill_9_of_the_parent_ends_the_command(tmp_path):
    with start_python(PARENT, tmp_path / "log") as parent:
        command, watchdog = map(int, parent.stdout.readline().split())
        assert is_alive(command)

        parent.kill()
        wait_gone(command, watchdog)


def test_kill_9_of_the_watchdog_ends_the_command(tmp_path):
    with start_python(PARENT, tmp_path / "log") as parent:
        command, watchdog = map(int, parent.stdout.readline().split())

        os.kill(watchdog, signal.SIGKILL)
        wait_gone(command)
        parent.kill()


async def test_leftover_is_ended_only_if_its_command_line_fits(tmp_path):
    process = await start(tmp_path, "/bin/sleep", "600.25")

    assert not await end_leftover(process.pid, "/somewhere/else", signal.SIGTERM)
    assert process.returncode is None

    assert await end_leftover(process.pid, "600.25", signal.SIGTERM)
    assert await process.wait(5) == 128 + signal.SIGTERM
    await process.stop()


def test_log_of_the_previous_run_is_set_aside(tmp_path):
    (tmp_path / "log").write_text("before")

    begin_log(tmp_path / "log")

    assert not (tmp_path / "log").exists()
    assert (tmp_path / "log.1").read_text() == "before"


def test_holder_of_a_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        assert not is_free(port)
        assert holder_of(port).pid == os.getpid()
        assert str(holder_of(port)).endswith(f"(pid {os.getpid()})")
        assert next_free_port(port) > port


def test_port_taken_on_the_other_loopback_address_only_is_not_free_for_localhost():
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]

        assert is_free(port)
        assert not is_free_for_localhost(port)


def test_consecutive_ports_prefer_those_of_the_last_time():
    first = free_ports(10)

    assert free_ports(10, first) == first
    with socket.create_server(("127.0.0.1", first + 5)):
        assert free_ports(10, first) != first


async def test_order_to_stop_right_after_the_start_is_not_lost(tmp_path):
    for _ in range(20):
        process = await start(tmp_path, "/bin/sleep", "600", grace_seconds=30)

        assert await process.stop() == 128 + signal.SIGTERM
