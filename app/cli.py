"""`execution-plane`: run the service, migrate, check the configuration, develop on a laptop.

Only click is imported here; a command imports what it needs itself, so help is there at once.
Data goes to stdout, everything else to stderr. Exit status: 0 done, 1 refused or failed, 2 wrong
usage, 5 not reachable now.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from app.commands.audit import Finding
    from app.embedded.home import Home
    from app.settings import Settings

PROGRAM = "execution-plane"
NOT_REACHABLE = 5
ROLES = ("runner", "control-plane", "operator", "pubsub")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def cli() -> None:
    """The record of every technical execution."""


def main() -> None:
    """The program's entry."""
    cli(prog_name=PROGRAM)


def _fail(*lines: str, status: int = 1) -> NoReturn:
    """End with sentences on stderr."""
    for line in lines:
        click.echo(line, err=True)
    sys.exit(status)


def _settings() -> Settings:
    from app.domain.errors import SettingsInvalid  # noqa: PLC0415
    from app.settings import load  # noqa: PLC0415

    try:
        return load()
    except SettingsInvalid as invalid:
        _fail("The configuration is not usable:", *(f"  {line}" for line in invalid.problems))


@cli.command()
def version() -> None:
    """Print the version."""
    from app.embedded.environment import version as current  # noqa: PLC0415

    click.echo(current())


@cli.command()
@click.option("--after", "gate", type=click.Path(path_type=Path), hidden=True)
@click.option(
    "--role", type=click.Choice(["api", "scheduler", "all"]), envvar="EXECUTION_PLANE_ROLE",
    default="all", show_default=True, help="Answer requests, run the sweeps, or both.",
)  # fmt: skip
def serve(gate: Path | None, role: str) -> None:
    """Run the service until SIGTERM.

    All settings come from the environment; `check-config` shows them.
    """
    os.environ["EXECUTION_PLANE_ROLE"] = role
    settings = _settings()
    from app.serve import serve as run  # noqa: PLC0415

    # The development stack starts this process early: its imports then cost no time of their own.
    while gate is not None and not gate.exists():
        time.sleep(0.01)
    run(settings)


@cli.command()
@click.option("--to", "revision", default="head", show_default=True, help="The revision to reach.")
def migrate(revision: str) -> None:
    """Bring the database to the newest revision.

    Needs EXECUTION_PLANE_DATABASE__URL, or its DIRECT_URL where a pooler is in between. May be
    run by many at once: one does it, the others wait and find nothing to do.
    """
    dsn = _database_url(os.environ)
    from app.store.migrate import upgrade  # noqa: PLC0415

    if "EXECUTION_PLANE_TESTING__FAILPOINTS" in os.environ:
        from app.settings import load_testing  # noqa: PLC0415
        from app.wiring import arm_failpoints  # noqa: PLC0415

        arm_failpoints(load_testing(os.environ))
    applied = upgrade(dsn, revision)
    click.echo(f"{applied} migrations applied" if applied else "no migrations to apply")


def _database_url(environ: Mapping[str, str]) -> str:
    """The database's address for migrations; the other settings need not be there for them."""
    prefix = "EXECUTION_PLANE_DATABASE__"
    for name in (f"{prefix}DIRECT_URL", f"{prefix}URL"):
        if value := environ.get(name):
            return value
        if path := environ.get(f"{name}_FILE"):
            try:
                return Path(path).read_text().strip()
            except OSError as error:
                _fail(f"{name}_FILE: cannot read {path}: {error.strerror}")
    _fail(f"{prefix}URL is missing, such as postgresql://user:password@host:5432/database")


@cli.command("check-config")
@click.option("--objects", is_flag=True, help="Try instead what the object store can do.")
@click.option("--database", is_flag=True, help="Ask instead whether the database has the room.")
@click.option("--instances", type=click.IntRange(1), default=1, help="How many, for --database.")
def check_config(*, objects: bool, database: bool, instances: int) -> None:
    """Show every setting with its value and where it came from; secrets are hidden."""
    from app.commands import lock_room  # noqa: PLC0415
    from app.objects import report  # noqa: PLC0415
    from app.settings.showing import lines  # noqa: PLC0415

    settings = _settings()
    if objects:
        _end_with(report.report_on(settings.objects), "object store")
    if database:
        _end_with(lock_room.report_on(settings, instances), "database")
    for line in lines(settings, os.environ):
        click.echo(line)


def _end_with(asked: Coroutine[Any, Any, Any], part: str) -> NoReturn:
    """Print a report on a part. Exit status 1: the service would not do with it as it is set."""
    import asyncio  # noqa: PLC0415

    from app.domain.errors import ServiceError  # noqa: PLC0415

    try:
        report = asyncio.run(asked)
    except ServiceError as error:
        _fail(f"The {part} does not answer: {error.__cause__}", status=NOT_REACHABLE)
    for line in report.lines:
        click.echo(line)
    sys.exit(not report.usable)


@cli.command()
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=20, show_default=True,
    help="Name at most so many violations a check.",
)  # fmt: skip
@click.option(
    "--objects", is_flag=True,
    help="Ask the store for every object too; needs all of the service's settings.",
)  # fmt: skip
def audit(*, output: str, limit: int, objects: bool) -> None:
    """Check everything stored against what must hold of it.

    Reads one snapshot and writes nothing; the service may be at work. Needs
    EXECUTION_PLANE_DATABASE__URL, and the service's LEASES settings where they are not the
    defaults. Exit status 1 if anything is broken.
    """
    import asyncio  # noqa: PLC0415
    import json  # noqa: PLC0415

    import asyncpg  # noqa: PLC0415

    from app.commands import audit as auditor  # noqa: PLC0415

    dsn = _database_url(os.environ)
    try:
        terms = auditor.Terms.from_environment(os.environ)
        findings = asyncio.run(auditor.audit(dsn, terms, limit=limit))
    except ValueError as error:
        _fail(f"The settings of the leases are not usable: {error}")
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
        _fail(f"This is no database of this version of the service: {error}.")
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        _fail(f"The database does not answer: {error}", status=NOT_REACHABLE)
    if objects:
        findings.append(_audit_store(_settings(), limit))
    if output == "json":
        click.echo(json.dumps(auditor.document(findings)))
    else:
        for line in auditor.lines(findings):
            click.echo(line)
    sys.exit(any(finding.violations for finding in findings))


def _audit_store(settings: Settings, limit: int) -> Finding:
    """Whether every artifact has its object."""
    import asyncio  # noqa: PLC0415

    from app.commands.audit_objects import audit_store  # noqa: PLC0415
    from app.domain.errors import ServiceError  # noqa: PLC0415

    try:
        return asyncio.run(audit_store(settings, limit=limit))
    except ServiceError as error:
        _fail(f"The objects cannot be audited: {error.detail}", status=NOT_REACHABLE)


# --- development ---------------------------------------------------------------------------------


@cli.group()
def dev() -> None:
    """The whole stack on this machine, on loopback only. For development."""


def _default_home() -> Path:
    """The checkout's own `.dev`, from whatever folder one calls; else that of this folder."""
    checkout = Path(__file__).parents[1]
    return (checkout if (checkout / "pyproject.toml").exists() else Path()) / ".dev"


_home_options = (
    click.option(
        "--home",
        "root",
        envvar="DEV_HOME",
        default=_default_home,
        show_default=".dev",
        type=click.Path(path_type=Path),
        help="Folder of the stack's data.",
    ),
    click.option("--name", default="", help="A stack of its own in that folder."),
)


def _with_home(command: Any) -> Any:
    for option in reversed(_home_options):
        command = option(command)
    return command


def _home(root: Path, name: str) -> Home:
    from app.embedded.failure import PartFailed  # noqa: PLC0415
    from app.embedded.home import Home  # noqa: PLC0415

    try:
        return Home(root, name)
    except PartFailed as failed:
        _fail(str(failed), f"  {failed.mend}")


def _short(path: Path) -> str:
    from app.embedded.report import shown  # noqa: PLC0415

    return shown(path)


def _running(root: Path, name: str) -> dict[str, Any]:
    """What runs from this home, or the end of the program with a sentence."""
    state = _home(root, name).running()
    if not state:
        _fail(
            f"No stack runs from {_short(root / name)}.",
            f"  Start one:  make run{f' NAME={name}' if name else ''}",
            status=NOT_REACHABLE,
        )
    return state


@dev.command()
@_with_home
@click.option("--port", type=click.IntRange(1, 65_535), help="Default: 8443 or the next free one.")
@click.option(
    "--output", type=click.Choice(["text", "jsonl"]), default="text",
    show_default=True,
)  # fmt: skip
def up(root: Path, name: str, port: int | None, output: str) -> None:
    """Start everything and run until Ctrl-C.

    PostgreSQL, an S3 server, TLS, a token issuer, a Pub/Sub that pushes, the migrations and the
    service. Data stays in the home.
    """
    import asyncio  # noqa: PLC0415

    from app.embedded.stack import run_stack  # noqa: PLC0415
    from app.embedded.watch import watch_attempts  # noqa: PLC0415

    style: Any = output
    running = run_stack(root, name=name, port=port, style=style, while_running=watch_attempts)
    sys.exit(asyncio.run(running))


@dev.command()
@_with_home
@click.option("--role", type=click.Choice(ROLES), required=True, help="What the caller may do.")
@click.option("--account", help="Another account than the role's own.")
@click.option("--audience", help="Another audience than the service's.")
def token(root: Path, name: str, role: str, account: str | None, audience: str | None) -> None:
    r"""Print a token of the running stack, good for an hour at most.

    \b
    Example:  curl --cacert .dev/tls/ca.pem https://localhost:8443/v1/attempts \
                -H "Authorization: Bearer $(execution-plane dev token --role operator)"
    """
    import json  # noqa: PLC0415
    from urllib.request import Request, urlopen  # noqa: PLC0415

    state = _running(root, name)
    wanted = {
        "account": account or state["accounts"][role],
        "audience": audience or state["audience"],
    }
    request = Request(f"{state['issuer_url']}/token", json.dumps(wanted).encode())  # noqa: S310
    try:
        with urlopen(request, timeout=5) as answer:  # noqa: S310  loopback, from our own state
            click.echo(json.load(answer)["id_token"])
    except OSError as error:
        _fail(f"The stack's issuer does not answer: {error}.", status=NOT_REACHABLE)


@dev.command()
@_with_home
@click.option(
    "--output", type=click.Choice(["text", "json", "env"]), default="text", show_default=True
)
def status(root: Path, name: str, output: str) -> None:
    """Say what runs where.

    `--output env` is for `eval`; the service's own settings are in the home's service.env.
    """
    state = _running(root, name)
    if output == "json":
        import json  # noqa: PLC0415

        click.echo(json.dumps(state))
        return
    for key, value in state.items():
        if not isinstance(value, dict):
            plain = str(value) if output == "env" else _without_password(str(value))
            _print_fact(key, plain, as_env=output == "env")
    if output == "text":
        pids = ", ".join(f"{part} {pid}" for part, pid in state["pids"].items())
        _print_fact("processes", pids, as_env=False)


def _without_password(value: str) -> str:
    """An address as it may stand on a screen that others see."""
    import re  # noqa: PLC0415

    return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", value)


def _print_fact(key: str, value: str, *, as_env: bool) -> None:
    if as_env:
        import shlex  # noqa: PLC0415

        click.echo(f"export DEV_{key.upper()}={shlex.quote(value)}")
    else:
        click.echo(f"{key.replace('_', ' '):<18} {value}")


@dev.command()
@click.argument("scenario", default="job")
@_with_home
def demo(root: Path, name: str, scenario: str) -> None:
    """Show one job, end to end; `demo list` names what else there is to see.

    Uses the stack that runs, or starts one and stops it afterwards.
    """
    import asyncio  # noqa: PLC0415

    from app.embedded.demo import run_demo  # noqa: PLC0415
    from app.embedded.demo_scenes import DEMONSTRATIONS  # noqa: PLC0415

    if scenario == "list":
        for known, demonstration in DEMONSTRATIONS.items():
            click.echo(f"{known:<8} {demonstration.what}")
        return
    if scenario not in DEMONSTRATIONS:
        _fail(f"There is no demonstration {scenario}, but {', '.join(DEMONSTRATIONS)}.", status=2)
    _home(root, name)
    sys.exit(asyncio.run(run_demo(root, name, scenario)))


@dev.command()
@_with_home
def clean(root: Path, name: str) -> None:
    """Remove the stack's data; refused while one runs from it."""
    from app.embedded.failure import PartFailed  # noqa: PLC0415

    home, place = _home(root, name), _short(root / name)
    try:
        removed = home.remove()
    except PartFailed as failed:
        _fail(f"Not removed: {failed}", f"  {failed.mend}")
    click.echo(f"Removed {place}." if removed else f"There is no {place}.")
