import os
import signal
import socket
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from embedded_processes import start_python, wait_gone

from app.embedded.failure import PartFailed
from app.embedded.guarded import Guarded, clean_environment
from app.embedded.ports import free_port
from app.embedded.postgres import EmbeddedPostgres, program, version

SERVE = """
import asyncio, sys
from pathlib import Path
from app.embedded.postgres import EmbeddedPostgres

async def main():
    server = EmbeddedPostgres(Path(sys.argv[1]))
    await server.start()
    print(server.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@asynccontextmanager
async def running(folder, **settings):
    server = EmbeddedPostgres(folder, options={"fsync": "off", "max_connections": 10}, **settings)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def ask(dsn, sql):
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


async def make_table(dsn):
    await ask(dsn, "CREATE TABLE kept AS SELECT 42 AS value")


async def kept(dsn):
    return await ask(dsn, "SELECT value FROM kept")


def thinks_it_is_root(pid):
    uid = int(Path(f"/proc/{pid}/status").read_text().split("Uid:")[1].split()[0])
    first_id_inside = Path(f"/proc/{pid}/uid_map").read_text().split()[0]
    return uid == 0 and first_id_inside == "0"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "postgres"


async def test_first_start_makes_a_database_whose_owner_is_no_superuser(folder):
    async with running(folder) as server:
        await make_table(server.dsn)

        assert await kept(server.dsn) == 42
        assert await ask(server.dsn, "SELECT current_user") == "execution_plane"
        assert await ask(server.dsn, "SHOW is_superuser") == "off"
        assert await ask(server.admin_dsn, "SHOW is_superuser") == "on"
        assert await ask(server.dsn, "SHOW server_version") == version()


async def test_options_are_server_settings(folder):
    async with running(folder) as server:
        assert await ask(server.dsn, "SHOW max_connections") == "10"
        assert await ask(server.dsn, "SHOW fsync") == "off"
        assert await ask(server.dsn, "SHOW listen_addresses") == "127.0.0.1"


async def test_second_start_has_the_same_data_and_address(folder):
    async with running(folder) as server:
        await make_table(server.dsn)
        address = server.dsn

    async with running(folder) as server:
        assert server.dsn == address
        assert await kept(server.dsn) == 42


async def test_passwords_and_data_are_closed_to_others(folder):
    async with running(folder):
        assert (folder / "installation.json").stat().st_mode & 0o077 == 0
        assert folder.stat().st_mode & 0o077 == 0
        assert (folder / "cluster").stat().st_mode & 0o077 == 0


async def test_wrong_password_is_refused(folder):
    async with running(folder) as server:
        password = server.dsn.split(":")[2].split("@")[0]

        with pytest.raises(asyncpg.InvalidPasswordError):
            await ask(server.dsn.replace(password, "guess"), "SELECT 1")


async def test_kill_9_of_the_parent_ends_the_server_and_keeps_the_data(folder):
    async with running(folder) as server:
        await make_table(server.dsn)

    with start_python(SERVE, folder) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
        wait_gone(pid)

    async with running(folder) as server:
        assert await kept(server.dsn) == 42


async def test_kill_9_of_the_server_keeps_committed_data(folder):
    async with running(folder) as server:
        await make_table(server.dsn)
        os.kill(server.pid, signal.SIGKILL)

    async with running(folder) as server:
        assert await kept(server.dsn) == 42


async def test_first_start_that_was_cut_short_is_done_again(folder):
    half_made = folder / "cluster.new" / "data"
    half_made.mkdir(parents=True)
    (half_made / "PG_VERSION").write_text("18\n")

    async with running(folder) as server:
        assert await ask(server.dsn, "SELECT 1") == 1
        assert not half_made.exists()


async def test_server_that_an_earlier_run_lost_hold_of_is_ended(folder):
    async with running(folder):
        pass
    lost = await Guarded.start(
        [program("postgres"), "-D", folder / "cluster", "-p", str(free_port()), "-k", ""],
        log_file=folder / "lost.log",
        env=clean_environment(),
        stop_signal=signal.SIGINT,
        as_nobody=[folder / "cluster"],
    )
    while "ready to accept" not in (folder / "lost.log").read_text():
        assert await lost.wait(0.01) is None

    async with running(folder) as server:
        assert await ask(server.dsn, "SELECT 1") == 1
        assert await lost.wait(5) == 0
    await lost.stop()


async def test_pid_file_whose_pid_now_belongs_to_another_program_is_no_obstacle(folder):
    async with running(folder) as server:
        text = (folder / "cluster" / "postmaster.pid").read_text()
        stale = text.replace(str(server.pid), str(os.getpid()), 1)
    (folder / "cluster" / "postmaster.pid").write_text(stale)

    async with running(folder) as server:
        assert await ask(server.dsn, "SELECT 1") == 1


async def test_cluster_of_another_version_is_refused_with_its_remedy(folder):
    async with running(folder):
        pass
    (folder / "cluster" / "PG_VERSION").write_text("17\n")

    with pytest.raises(PartFailed, match=r"made by PostgreSQL 17, this is PostgreSQL 18") as failed:
        await EmbeddedPostgres(folder).start()

    assert failed.value.mend == "make clean"
    assert "\n" not in str(failed.value)


async def test_folder_in_use_names_the_process(folder):
    async with running(folder) as server:
        with pytest.raises(PartFailed, match=f"in use by process {os.getpid()}"):
            await EmbeddedPostgres(folder).start()

        assert await ask(server.dsn, "SELECT 1") == 1


async def test_port_asked_for_that_is_taken_names_its_holder(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(PartFailed, match=rf"port {port} is held by .+ \(pid {os.getpid()}\)"):
            await EmbeddedPostgres(folder, port=port).start()


async def test_broken_configuration_fails_with_the_servers_own_words(folder):
    async with running(folder):
        pass
    with (folder / "cluster" / "postgresql.conf").open("a") as file:
        file.write("nonsense = on\n")

    with pytest.raises(PartFailed) as failed:
        await EmbeddedPostgres(folder).start()

    assert any('"nonsense"' in line for line in failed.value.last_lines())


@pytest.mark.parametrize("use_namespace", [True, False])
async def test_server_is_never_root(folder, use_namespace):
    server = EmbeddedPostgres(folder)
    server.use_namespace = use_namespace
    await server.start()
    try:
        assert await ask(server.dsn, "SELECT 1") == 1
        assert not thinks_it_is_root(server.pid)
    finally:
        await server.stop()


async def test_folder_that_once_belonged_to_nobody_still_works(folder):
    server = EmbeddedPostgres(folder)
    server.use_namespace = False
    await server.start()
    await make_table(server.dsn)
    await server.stop()

    async with running(folder) as server:
        assert await kept(server.dsn) == 42
