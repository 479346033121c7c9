"""Failpoints: every name is a moment that exists, and none is armed unless it is allowed."""

import re
from pathlib import Path

import pytest

from app import failpoints
from app.domain.errors import SettingsInvalid

ROOT = Path(__file__).parents[1]


def test_every_name_is_a_moment_in_the_code_and_every_moment_has_a_name():
    text = "".join(path.read_text() for path in (ROOT / "app").rglob("*.py"))
    moments = set(re.findall(r'failpoints\.hit(?:_blocking)?\("([a-z_.]+)"\)', text))

    assert moments == failpoints.NAMES


def test_armed_failpoints_are_refused_unless_they_are_allowed(make_settings):
    armed = {"create.after_commit": {"action": "kill"}}

    with pytest.raises(SettingsInvalid, match="failpoints are armed"):
        make_settings(TESTING__FAILPOINTS=armed)

    assert make_settings(TESTING__FAILPOINTS=armed, TESTING__ALLOW_FAILPOINTS="true")


def test_nothing_is_armed_by_default(settings):
    assert settings.testing.failpoints == {}
    assert failpoints.ARMED == {}


def test_a_name_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"no failpoint made\.up"):
        failpoints.arm({"made.up": failpoints.Failpoint("kill")})
