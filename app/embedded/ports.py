"""Loopback ports: which are free, and who holds the one that is not."""

from __future__ import annotations

import errno
import random
import shutil
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = "127.0.0.1"
# Below the range from which kernels take the ports of outgoing connections: a port that was
# free a moment ago is then not lost to somebody's client.
FIRST, LAST = 20_000, 32_000
PROC = Path("/proc/self/net")
LISTEN_STATE = "0A"


@dataclass(frozen=True)
class Holder:
    """The process that listens on a port."""

    pid: int
    name: str

    def __str__(self) -> str:
        """As it stands in a sentence."""
        return f"{self.name} (pid {self.pid})"


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether a server could listen on it now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do it: connections of a server that ended are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def is_free_for_localhost(port: int) -> bool:
    """As `is_free`, on both loopback addresses: `localhost` may mean either."""
    if not is_free(port):
        return False
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("::1", port))
    except OSError as error:
        return error.errno != errno.EADDRINUSE  # a machine without IPv6 is no obstacle
    return True


def free_port(preferred: int = 0) -> int:
    """A free port, the preferred one if possible."""
    return free_ports(1, preferred)


def free_ports(count: int, preferred: int = 0) -> int:
    """The first of `count` free consecutive ports, beginning at the preferred one if possible."""
    candidates = [preferred] if preferred else []
    candidates += [random.randrange(FIRST, LAST - count) for _ in range(200)]  # noqa: S311
    for first in candidates:
        if all(is_free(port) for port in range(first, first + count)):
            return first
    raise OSError(f"no {count} free consecutive ports between {FIRST} and {LAST}")


def next_free_port(first: int) -> int:
    """The lowest free port from `first` on."""
    for port in range(first, min(first + 200, 65_536)):
        if is_free_for_localhost(port):
            return port
    raise OSError(f"no free port between {first} and {first + 199}")


def holder_of(port: int) -> Holder | None:
    """Who listens on the port, None where that cannot be seen (another user's process)."""
    if PROC.is_dir():
        return _holder_from_proc(port)
    lsof = shutil.which("lsof") or "/usr/sbin/lsof"
    with suppress(OSError):
        found = subprocess.run(  # noqa: S603
            [lsof, "-nP", f"-iTCP:{port}", "-sTCP:LISTEN", "-Fpc"],
            capture_output=True,
            text=True,
            check=False,
        )
        fields = {line[0]: line[1:] for line in found.stdout.splitlines() if line}
        if "p" in fields:
            return Holder(int(fields["p"]), fields.get("c", "a process"))
    return None


def _holder_from_proc(port: int) -> Holder | None:
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not wanted:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()) in wanted:
                        return Holder(int(process.name), (process / "comm").read_text().strip())
    return None


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTEN_STATE and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    inodes.add(fields[9])
    return inodes


def held_sentence(port: int) -> str:
    """`port 8443 is held by python3 (pid 4121)`, as much of it as can be known."""
    holder = holder_of(port)
    return f"port {port} is held by {holder or 'another process'}"
