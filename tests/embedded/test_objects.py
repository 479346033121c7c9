import os
import signal
from pathlib import Path

import pytest
from embedded_processes import start_python, wait_gone

from app.embedded.objects import EmbeddedObjects

SERVE = """
import asyncio, sys
from pathlib import Path
from app.embedded.objects import EmbeddedObjects

async def main():
    server = EmbeddedObjects(Path(sys.argv[1]))
    await server.start()
    print(server.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("objects")


@pytest.fixture
async def server(folder):
    server = EmbeddedObjects(folder)
    await server.start()
    yield server
    await server.stop()


def listening_addresses(pid):
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        target = str(descriptor.readlink())
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


async def test_object_is_stored_and_read_back(server):
    assert server.request("PUT", "/artifacts/a/b", b"body") == (200, b"")
    assert server.request("GET", "/artifacts/a/b") == (200, b"body")


async def test_bucket_that_does_not_exist_is_not_made(server):
    assert server.request("PUT", "/misspelt/a", b"body")[0] == 404


async def test_wrong_secret_is_refused(server):
    stranger = EmbeddedObjects(server.data_dir)
    stranger.port = server.port
    stranger._memory = {"access_key_id": server.access_key_id, "secret_access_key": "guess"}

    assert stranger.request("GET", "/artifacts/a/b")[0] == 403


async def test_all_ports_are_on_loopback(server):
    assert listening_addresses(server.pid) == {"0100007F"}


async def test_keys_are_closed_to_others(server):
    assert (server.data_dir / "installation.json").stat().st_mode & 0o077 == 0
    assert (server.data_dir / "data").stat().st_mode & 0o077 == 0


async def test_kill_9_of_the_server_keeps_objects_keys_and_address(folder):
    first = EmbeddedObjects(folder)
    await first.start()
    first.request("PUT", "/artifacts/kept", b"body")
    address = (first.endpoint_url, first.access_key_id, first.secret_access_key)
    os.kill(first.pid, signal.SIGKILL)
    await first.stop()

    second = EmbeddedObjects(folder)
    await second.start()
    try:
        assert (second.endpoint_url, second.access_key_id, second.secret_access_key) == address
        assert second.request("GET", "/artifacts/kept") == (200, b"body")
    finally:
        await second.stop()


async def test_kill_9_of_the_parent_ends_the_server(folder):
    with start_python(SERVE, folder) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
        wait_gone(pid)
