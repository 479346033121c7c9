"""A program that runs one command and ends it when its own parent is gone.

It is started as `python -I -S watchdog.py PLAN` by `guarded.Guarded`, needs only the standard
library and holds the read end of a pipe as its standard input. The parent holds the other end; the
kernel closes it however the parent ends, kill -9 included, and the end of file is the order to
stop. So nothing that was started here survives, and nobody has to clean up.

PLAN is JSON: `argv`, `stop_signal`, `grace_seconds` (then SIGKILL), `stdin` (a file or null), and
`as_nobody` (folders that the command must own, or null), `namespace` (false: never try one). The
first line on standard output is the command's pid; its own output goes to standard error. The exit
status is that of the command.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any

NOBODY = 65534
CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAP_DAC_OVERRIDE = 1
CAPABILITY_VERSION_3 = 0x20080522
ORDERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
HAS_PROC = os.access("/proc/self/cmdline", os.R_OK)


def main() -> int:
    """Run the plan's command to its end, or until standard input ends."""
    plan = json.loads(sys.argv[1])
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    orders: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: orders.append(1))
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)
    # An order that comes before the command is itself must reach it, not this program's copy.
    signal.pthread_sigmask(signal.SIG_BLOCK, ORDERS)
    pid = os.fork()
    if pid == 0:
        become(plan)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ORDERS)
    os.write(1, b"%d\n" % pid)
    os.close(1)
    return watch(pid, plan, read_end, orders)


def watch(pid: int, plan: dict[str, Any], wakeups: int, orders: list[int]) -> int:
    """Wait for the command; pass on the order to stop, and enforce it after the grace."""
    watched = [0, wakeups]
    kill_at = float("inf")
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return exit_code(status)
        wait = min(1.0, max(0.0, kill_at - time.monotonic()))
        ready, _, _ = select.select(watched, [], [], wait)
        if wakeups in ready:
            os.read(wakeups, 4096)
        if 0 in ready and not os.read(0, 4096):
            watched.remove(0)
            orders.append(1)
        if orders and kill_at == float("inf"):
            kill_at = time.monotonic() + plan["grace_seconds"]
            send(pid, plan["stop_signal"])
        elif time.monotonic() >= kill_at:
            send(pid, signal.SIGKILL)
            kill_at = time.monotonic() + 1


def exit_code(status: int) -> int:
    """The shell's convention: the status, or 128 and the number of the signal."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def send(pid: int, number: int) -> None:
    """Signal a process that may have ended meanwhile."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def become(plan: dict[str, Any]) -> None:
    """Turn this fork into the command; never returns."""
    try:
        watcher = os.getppid()
        signal.set_wakeup_fd(-1)
        for changed in (*ORDERS, signal.SIGPIPE, signal.SIGCHLD):
            signal.signal(changed, signal.SIG_DFL)
        os.dup2(os.open(plan["stdin"] or os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        if plan["as_nobody"] is not None and os.geteuid() == 0:
            leave_root(plan["as_nobody"], namespace=plan["namespace"])
        end_with_parent(watcher, plan["stop_signal"])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ORDERS)
        os.execv(plan["argv"][0], plan["argv"])  # noqa: S606  no shell: the program is named exactly
    except BaseException as error:  # noqa: BLE001  a fork must never run on into its parent's code
        os.write(2, f"cannot start {plan['argv'][0]}: {error}\n".encode())
    os._exit(127)


def end_with_parent(watcher: int, number: int) -> None:
    """Second net, Linux only: the kernel signals the command when the watchdog itself is killed.

    Must follow every change of user, which would clear it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != watcher:
            os._exit(0)


def leave_root(folders: list[str], *, namespace: bool) -> None:
    """Stop being root for a program that refuses root, without making a system user.

    First choice: a user namespace in which root is called nobody; files stay root's. Where the
    kernel forbids that, or the folders lie in somebody's closed folder, where such a namespace may
    not go: become that somebody, or else nobody, who then owns the folders and keeps the one
    capability of reaching them and the program through folders that are closed to others.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    owner = other_owner(folders[0])
    if namespace and owner is None and libc.unshare(CLONE_NEWUSER) == 0:
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"{NOBODY} {uid} 1")
        write("/proc/self/gid_map", f"{NOBODY} {gid} 1")
        return
    new_uid, new_gid = owner or (NOBODY, NOBODY)
    give(folders, new_uid, new_gid)
    libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setgid(new_gid)
    os.setuid(new_uid)
    keep_reach(libc)


def other_owner(folder: str) -> tuple[int, int] | None:
    """User and group of the folder or the closest one above it that is not root's; None if none.

    Above it only folders that are closed to others count.
    """
    path, closed = folder, 0
    while True:
        found = os.stat(path)  # noqa: PTH116  pathlib is slow to import
        if found.st_uid != os.getuid() and not found.st_mode & closed:
            return found.st_uid, found.st_gid
        if path == "/":
            return None
        path, closed = path.rpartition("/")[0] or "/", 0o001


def keep_reach(libc: ctypes.CDLL) -> None:
    """Keep CAP_DAC_OVERRIDE across exec; best effort, an open path works without it."""
    mask = 1 << CAP_DAC_OVERRIDE
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    wanted = (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)
    if libc.capset(ctypes.byref(header), ctypes.byref(wanted)) == 0:
        libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE, 0, 0)


def give(folders: list[str], uid: int, gid: int) -> None:
    """Make the folders and all in them belong to a user; nothing to do in the usual case."""
    for folder in folders:
        if os.stat(folder).st_uid == uid:  # noqa: PTH116  pathlib is slow to import
            continue
        for path, _, files in os.walk(folder):
            for name in (path, *(f"{path}/{file}" for file in files)):
                os.lchown(name, uid, gid)


def write(path: str, text: str) -> None:
    """Write one of the kernel's files."""
    with open(path, "w", encoding="ascii") as file:  # noqa: PTH123  pathlib is slow to import
        file.write(text)


if __name__ == "__main__":
    sys.exit(main())
