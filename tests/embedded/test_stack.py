import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace
from urllib.request import Request, urlopen

import pytest
from embedded_processes import ROOT, is_alive, wait_gone

from app.embedded.failure import PartFailed
from app.embedded.home import Home
from app.embedded.ports import free_port


def command(*args):
    return subprocess.run(
        [sys.executable, "-m", "app", *map(str, args)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def stack(home, *args):
    """A running stack, as the facts that it prints when it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "dev", "up", "--home", home, "--output", "jsonl", *args],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        facts = {"event": ""}
        while facts["event"] not in {"stack_ready", "failed"}:
            facts = json.loads(process.stdout.readline())
        assert facts["event"] == "stack_ready", facts
        yield process, facts
    finally:
        process.send_signal(signal.SIGTERM)
        process.stdout.close()
        process.wait(30)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("stack") / ".dev"


def fetch(facts, path, **headers):
    trust = ssl.create_default_context(cafile=facts["ca_file"])
    request = Request(facts["api_url"] + path, headers=headers)
    with urlopen(request, context=trust, timeout=10) as answer:
        return answer.status


def test_stack_serves_over_tls_and_ends_as_a_whole_when_told_to(home):
    with stack(home, "--port", str(free_port())) as (process, facts):
        assert fetch(facts, "/readyz") == 200
        pids = list(facts["pids"].values())
        assert all(map(is_alive, pids))

    assert process.returncode == 0
    wait_gone(*pids)
    assert not (home / "stack.json").exists()


def test_commands_find_the_running_stack(home):
    with stack(home, "--port", str(free_port())):
        token = command("dev", "token", "--home", home, "--role", "operator")
        assert token.stdout.count(".") == 2
        assert token.stdout.count("\n") == 1

        facts = json.loads(command("dev", "status", "--home", home, "--output", "json").stdout)
        assert facts["topic"] == "projects/dev/topics/execution-plane"
        assert "***" in command("dev", "status", "--home", home).stdout

        clean = command("dev", "clean", "--home", home)
        assert clean.returncode == 1
        assert f"(pid {facts['pid']})" in clean.stderr

        second = command("dev", "up", "--home", home)
        assert second.returncode == 1
        assert f"a stack runs from {home} (pid {facts['pid']})" in second.stdout

        assert (home / "service.env").stat().st_mode & 0o777 == 0o600
        assert (home / "stack.json").stat().st_mode & 0o777 == 0o600


def test_kill_9_of_the_stack_leaves_nothing_and_the_next_start_works(home):
    with stack(home, "--port", str(free_port())) as (process, facts):
        process.kill()
        wait_gone(*facts["pids"].values())

    with stack(home, "--port", str(free_port())) as (_, facts):
        assert fetch(facts, "/readyz") == 200


def test_part_that_ends_by_itself_ends_the_stack_with_its_name(home):
    with stack(home, "--port", str(free_port())) as (process, facts):
        os.kill(facts["pids"]["service"], signal.SIGKILL)
        last = json.loads(process.stdout.readline())
        assert (last["event"], last["part"]) == ("failed", "service")
        process.wait(30)

    assert process.returncode == 1
    wait_gone(*facts["pids"].values())


def test_port_asked_for_that_is_taken_stops_the_start(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        ended = command("dev", "up", "--home", tmp_path, "--port", port)

    assert ended.returncode == 1
    assert f"port {port} is held by" in ended.stdout
    assert f"(pid {os.getpid()})" in ended.stdout
    assert "make run PORT=" in ended.stdout
    assert not (tmp_path / "stack.json").exists()


def test_part_that_fails_is_named_with_its_remedy_and_nothing_is_left(tmp_path):
    (tmp_path / "postgres" / "cluster").mkdir(parents=True)
    (tmp_path / "postgres" / "cluster" / "PG_VERSION").write_text("17\n")
    (tmp_path / "postgres" / "installation.json").write_text('{"owner_password": "x"}')

    ended = command("dev", "up", "--home", tmp_path, "--port", free_port())

    assert not Home(tmp_path).is_used()
    assert ended.returncode == 1
    assert "made by PostgreSQL 17" in ended.stdout
    assert "Mend:  make clean" in ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr


@pytest.mark.parametrize("name", ["postgres", "../up", "Feature X"])
def test_name_that_is_no_name_is_refused(tmp_path, name):
    with pytest.raises(PartFailed, match="cannot be the name of a stack"):
        Home(tmp_path, name)


def test_named_stack_has_a_folder_of_its_own(tmp_path):
    assert Home(tmp_path, "feature-x").path == tmp_path / "feature-x"


def test_full_disk_stops_the_start_with_the_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=12_345_678))

    with pytest.raises(PartFailed, match=r"12 MB free where .+ is, 200 MB needed\."):
        Home(tmp_path).take()

    assert not Home(tmp_path).is_used()


def test_folder_is_removed_with_the_named_stacks_in_it_unless_one_runs(tmp_path):
    root = tmp_path / ".dev"
    named = Home(root, "feature-x")
    named.take()

    with pytest.raises(PartFailed, match="a stack runs from"):
        Home(root).remove()

    named.give_back()
    assert Home(root).remove()
    assert not root.exists()
