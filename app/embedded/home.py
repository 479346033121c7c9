"""The folder of one development stack: its parts' data, its logs, who uses it, what runs."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.embedded.failure import PartFailed
from app.embedded.folder import FolderLock, read_memory, write_memory
from app.embedded.report import shown

DEFAULT = ".dev"
NEEDED_MEGABYTES = 200
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
# Folders of the unnamed stack; a stack of that name would lie in them.
TAKEN = frozenset({"postgres", "objects", "tls", "pubsub", "log"})


class Home:
    """`.dev`, or a folder in it for a stack that has a name."""

    def __init__(self, root: Path, name: str = "") -> None:
        if name and (name in TAKEN or not NAME.fullmatch(name)):
            raise PartFailed(
                "name",
                f"{name!r} cannot be the name of a stack.",
                mend="use small letters, digits and hyphens, such as NAME=feature-x",
            )
        self.root = root.absolute()
        self.name = name
        self.path = self.root / name if name else self.root
        self._lock = FolderLock(self.path, "stack")

    def log(self, part: str) -> Path:
        """Where a part's log is."""
        return self.path / "log" / f"{part}.log"

    @property
    def state_file(self) -> Path:
        """Where the addresses of the running stack are."""
        return self.path / "stack.json"

    @property
    def environment_file(self) -> Path:
        """The service's settings for another shell."""
        return self.path / "service.env"

    def take(self) -> None:
        """Make the folder and use it alone; `PartFailed` when it is in use, full or forbidden."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._check_owner()
            if not self._lock.try_acquire():
                raise PartFailed("stack", self._in_use(), mend=self._another())
        except OSError as error:
            raise PartFailed(
                "stack",
                f"{shown(self.path)} cannot be written: {error.strerror}.",
                mend="make run DEV_HOME=/path/you/own",
            ) from None
        free = shutil.disk_usage(self.path).free // 1_000_000
        if free < NEEDED_MEGABYTES:
            self.give_back()
            raise PartFailed(
                "disk",
                f"{free} MB free where {shown(self.path)} is, {NEEDED_MEGABYTES} MB needed.",
                mend="free space, or  make run DEV_HOME=/path/with/space",
            )

    def _check_owner(self) -> None:
        """Two users' files in one folder end in a start that fails much later and less clearly."""
        owner = self.path.stat().st_uid
        if owner != os.geteuid():
            raise PartFailed(
                "stack",
                f"{shown(self.path)} belongs to the user with id {owner}, you are {os.geteuid()}.",
                mend="run as that user, or  make run DEV_HOME=/path/of/yours",
            )

    def give_back(self) -> None:
        """End the use of the folder."""
        self._lock.release()

    def write_state(self, state: dict[str, Any]) -> None:
        """Say what runs."""
        write_memory(self.state_file, state)

    def clear_state(self) -> None:
        """Nothing runs."""
        self.state_file.unlink(missing_ok=True)

    def running(self) -> dict[str, Any] | None:
        """What `write_state` said, if a stack really runs from this folder; None otherwise."""
        return read_memory(self.state_file) if self.is_used() else None

    def is_used(self) -> bool:
        """Whether a stack runs from this folder now."""
        return self._lock.is_taken()

    def remove(self) -> bool:
        """Remove the folder and all in it; `PartFailed` while a stack runs from it.

        False when there was none. The unnamed folder holds those of the named stacks.
        """
        for home in self._inside():
            if home.is_used():
                raise PartFailed("clean", home._in_use(), mend="stop it first: Ctrl-C there")  # noqa: SLF001
        if not self.path.exists():
            return False
        shutil.rmtree(self.path)
        return True

    def _inside(self) -> Iterator[Home]:
        yield self
        if not self.name and self.path.is_dir():
            for folder in self.path.iterdir():
                if folder.is_dir() and folder.name not in TAKEN and NAME.fullmatch(folder.name):
                    yield Home(self.root, folder.name)

    def _in_use(self) -> str:
        state = read_memory(self.state_file)
        address = f": {state['api_url']}" if "api_url" in state else ""
        return f"a stack runs from {shown(self.path)} (pid {self._lock.holder()}){address}."

    def _another(self) -> str:
        return "stop it with Ctrl-C where it runs, or start a second one:  make run NAME=second"
