"""The whole configuration, read once from the environment, with sentences for what is wrong."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from app.domain.errors import SettingsInvalid
from app.settings.callbacks import CallbackSettings
from app.settings.groups import (
    PREFIX,
    DatabaseSettings,
    Group,
    IdentitySettings,
    KeySettings,
    LeaseSettings,
    LimitSettings,
    ObjectSettings,
    PushSettings,
    ServerSettings,
    TelemetrySettings,
    TestingSettings,
)
from app.settings.retention import RetentionSettings
from app.settings.scheduler import SchedulerSettings


class Settings(BaseSettings):
    """The whole configuration. Build it with `load`, which explains what is wrong."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid"
    )

    server: ServerSettings = ServerSettings()
    database: DatabaseSettings
    objects: ObjectSettings
    identity: IdentitySettings
    keys: KeySettings
    push: PushSettings = PushSettings()
    leases: LeaseSettings = LeaseSettings()
    limits: LimitSettings = LimitSettings()
    callbacks: CallbackSettings = CallbackSettings()
    retention: RetentionSettings = RetentionSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    testing: TestingSettings = TestingSettings()
    role: Literal["api", "scheduler", "all"] = Field(
        "all", description="What this process does: answer requests, run loops, or both."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is the library's
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `load` passes in: no .env file, no hidden home."""
        return (init_settings,)


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from the environment (or from `environ`, which replaces it).

    Raises `domain.errors.SettingsInvalid` with one sentence a problem, each naming the variable to
    set and never the value that was given.
    """
    source = dict(os.environ if environ is None else environ)
    names = {name: value for name, value in source.items() if name.startswith(PREFIX)}
    try:
        names = _with_secret_files(names)
        reader = EnvSettingsSource(Settings)
        reader.env_vars = {name.lower(): value for name, value in names.items()}
        values = reader()
    except (ValueError, SettingsError) as error:
        raise SettingsInvalid([str(error)]) from None
    problems = _unknown_names(names)
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise SettingsInvalid(problems + _sentences(error.errors())) from None
    if problems:
        raise SettingsInvalid(problems)
    return settings


def load_testing(environ: Mapping[str, str]) -> TestingSettings:
    """The faults on purpose alone, for what needs no other setting. SettingsInvalid as `load`."""
    reader = EnvSettingsSource(Settings)
    reader.env_vars = {name.lower(): value for name, value in environ.items()}
    try:
        return TestingSettings(**reader().get("testing", {}))
    except ValidationError as error:
        raise SettingsInvalid(_sentences(error.errors())) from None


def _with_secret_files(names: Mapping[str, str]) -> dict[str, str]:
    """Put the content of its file in the place of every `EXECUTION_PLANE_…_FILE`."""
    values = dict(names)
    for name, path in names.items():
        target = name.removesuffix("_FILE")
        if target == name or name in _known_names() or not _is_known(target):
            continue
        if target in names:
            raise ValueError(f"{target} and {name} are both set; keep one")
        try:
            values[target] = Path(path).read_text().strip()
        except OSError as error:
            raise ValueError(f"{name}: cannot read {path}: {error.strerror}") from None
        del values[name]
    return values


def _is_known(name: str) -> bool:
    known = _known_names()
    fields = [parent for parent in known if "__" in parent]
    return name in known or any(name.startswith(f"{field}__") for field in fields)


def _known_names() -> set[str]:
    """Every variable that a scalar field or a whole group may be given by."""
    known: set[str] = set()
    for name, field in Settings.model_fields.items():
        known.add(PREFIX + name.upper())
        group = field.annotation
        if isinstance(group, type) and issubclass(group, Group):
            known |= {f"{PREFIX}{name}__{inner}".upper() for inner in group.model_fields}
    return known


def _unknown_names(names: Mapping[str, str]) -> list[str]:
    """A mistyped variable is an error: silently unread settings surprise at the worst time."""
    known = _known_names()
    problems = []
    for name in sorted(names):
        if _is_known(name):
            continue
        close = get_close_matches(name.removesuffix("_FILE"), known, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        problems.append(f"{name} is not a setting{hint}")
    return problems


def _sentences(errors: list[Any]) -> list[str]:
    """Each problem by the name of the variable that mends it; never the value given."""
    sentences = []
    for error in errors:
        location = [str(part) for part in error["loc"]]
        name = PREFIX + "__".join(location).upper()
        if error["type"] == "extra_forbidden":
            continue  # told as an unknown name, with the nearest known one
        if error["type"] != "missing":
            sentences.append(f"{name}: {error['msg'].removeprefix('Value error, ')}")
        elif len(location) == 1:
            sentences += [f"{name}__{field.upper()} is missing" for field in _required(location[0])]
        else:
            sentences.append(f"{name} is missing")
    return sentences


def _required(group_name: str) -> list[str]:
    """The fields of a group that have no default."""
    group = Settings.model_fields[group_name].annotation
    assert isinstance(group, type) and issubclass(group, Group)  # noqa: S101, PT018
    return [name for name, field in group.model_fields.items() if field.is_required()]
