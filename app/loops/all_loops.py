"""Every loop of this service: a new one is one line here."""

from __future__ import annotations

from app.domain.sent import Deliver
from app.loops.end_due import EndDue
from app.loops.fire_schedules import FireSchedules
from app.loops.forget_classes import ForgetClasses
from app.loops.forget_messages import ForgetMessages
from app.loops.forget_schedules import ForgetSchedules
from app.loops.keep_keys import KeepKeys
from app.loops.loop import Loop
from app.loops.make_partitions import MakePartitions
from app.loops.send_outbox import SendOutbox
from app.loops.tick import Tick


def loops_of(role: str, deliver: Deliver) -> list[Loop]:
    """The loops that a process of this role runs.

    `deliver` hands messages to the handlers of this process, where no topic is configured.
    """
    ticking: list[Loop] = [Tick()] if role in {"api", "all"} else []
    sweeping: list[Loop] = [
        EndDue(),
        KeepKeys(),
        FireSchedules(),
        SendOutbox(deliver),
        MakePartitions(),
        ForgetClasses(),
        ForgetMessages(),
        ForgetSchedules(),
    ]
    return ticking + (sweeping if role in {"scheduler", "all"} else [])
