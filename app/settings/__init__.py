"""Every setting of the service: one frozen tree, read once at start, passed on by hand.

Names in the environment are `EXECUTION_PLANE_<GROUP>__<FIELD>`; any of them may be given as
`<NAME>_FILE`, the path of a file that holds the value (for secrets). Units stand in the names.
Nothing here has a default that is a secret.
"""

from app.settings.callbacks import CallbackSettings
from app.settings.groups import (
    MIN_SECRET_LENGTH,
    PREFIX,
    DatabaseSettings,
    FailpointSettings,
    GrantSettings,
    Group,
    IdentitySettings,
    IssuerSettings,
    KeySettings,
    LeaseSettings,
    LimitSettings,
    ObjectSettings,
    PushSettings,
    Role,
    ServerSettings,
    TelemetrySettings,
    TestingSettings,
    TrustedUrl,
)
from app.settings.loading import Settings, load, load_testing
from app.settings.retention import RetentionSettings
from app.settings.scheduler import SchedulerSettings

__all__ = [
    "MIN_SECRET_LENGTH",
    "PREFIX",
    "CallbackSettings",
    "DatabaseSettings",
    "FailpointSettings",
    "GrantSettings",
    "Group",
    "IdentitySettings",
    "IssuerSettings",
    "KeySettings",
    "LeaseSettings",
    "LimitSettings",
    "ObjectSettings",
    "PushSettings",
    "RetentionSettings",
    "Role",
    "SchedulerSettings",
    "ServerSettings",
    "Settings",
    "TelemetrySettings",
    "TestingSettings",
    "TrustedUrl",
    "load",
    "load_testing",
]
