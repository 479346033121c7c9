"""What the commands of runners cause, over REST and over push."""

from __future__ import annotations

from datetime import timedelta

from app.commands import runners as commands
from app.commands.runners import Registration
from app.domain.commands import RegisterRunner, ReportStatus
from app.domain.errors import RunnerNotFound, ServiceError
from app.domain.records import Runner
from app.handlers.aftermath import tell
from app.handlers.counting import counted
from app.handlers.masks import masked_fields, refuse_secrets
from app.handlers.registry import Context, Registry
from app.services import Services
from app.store import runners

REGISTER = "runner.register"
REPORT_STATUS = "runner.report_status"
OFFLINE_LEASES = 3
"""A runner silent for so many lease times is shown as offline."""


async def register_runner(services: Services, command: RegisterRunner) -> Registration:
    """Register a runner or a new session of it. Raises SecretInRequest, SessionReused and its kin.

    Labels are masked; what a runner is known and chosen by must not be a secret.
    """
    with counted(services.metrics, REGISTER):
        refuse_secrets(
            services,
            runner_id=command.runner_id,
            version=command.version,
            capabilities=command.capabilities,
            zone=command.zone,
        )
        command, _ = await masked_fields(services, command, "register", "labels")
        outcome = await services.database.run(
            lambda conn: commands.register(conn, services.rules, command)
        )
        if isinstance(outcome, ServiceError):
            raise outcome
        await tell(services, outcome.ended)
        return outcome


async def report_status(services: Services, command: ReportStatus) -> bool:
    """Store a runner's report; False if a newer one had overtaken it."""
    with counted(services.metrics, REPORT_STATUS):
        command, _ = await masked_fields(services, command, "status", "last_error")
        outcome = await services.gathered.report.run(command)
        if isinstance(outcome, ServiceError):
            raise outcome
        return outcome


async def get_runner(services: Services, runner_id: str) -> Runner:
    """The runner as it is shown. Raises RunnerNotFound."""
    lease_time = services.terms.lease_time
    found = await services.database.run(
        lambda conn: runners.find(conn, runner_id, offline_after(services), lease_time)
    )
    if found is None:
        raise RunnerNotFound
    return found


def offline_after(services: Services) -> timedelta:
    """Silence after which a runner is shown as offline."""
    return OFFLINE_LEASES * services.terms.lease_time


def register(registry: Registry) -> None:
    """Register the handlers of this module."""

    @registry.handler(REGISTER, RegisterRunner, idempotent_by="session")
    async def registered(context: Context, command: RegisterRunner) -> None:
        await register_runner(context.services, command)

    @registry.handler(REPORT_STATUS, ReportStatus, idempotent_by="sequence")
    async def reported(context: Context, command: ReportStatus) -> None:
        await report_status(context.services, command)
