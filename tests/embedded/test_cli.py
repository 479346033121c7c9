import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from embedded_processes import ROOT

from app.cli import cli
from app.embedded import environment

HEAVY = ("fastapi", "pydantic", "asyncpg", "sqlalchemy", "aiobotocore", "httpx", "cryptography")


@pytest.fixture
def run():
    return lambda *args, **env: CliRunner().invoke(cli, args, env=env)


@pytest.fixture
def settings(tmp_path):
    """The environment that the development stack gives to the service."""
    parts = environment.Parts(
        database_url="postgresql://user:hidden-password@127.0.0.1:5432/db",
        objects={"bucket": "b", "access_key_id": "id", "secret_access_key": "hidden-secret"},
        issuer=environment.ISSUER,
        issuer_url="http://127.0.0.1:1",
        certificate_file=tmp_path / "server.pem",
        key_file=tmp_path / "server.key",
        port=8443,
    )
    keys = environment.server_keys(tmp_path / "keys.json")
    return environment.service_environment(parts, keys)


def test_help_needs_nothing_heavy():
    program = f"import app.cli, sys; print([m for m in {HEAVY} if m in sys.modules])"

    loaded = subprocess.check_output([sys.executable, "-c", program], cwd=ROOT)

    assert loaded.strip() == b"[]"


def test_version(run):
    assert run("version").output == f"{environment.version()}\n"


def test_stack_gives_the_service_a_complete_configuration(run, settings):
    shown = run("check-config", **settings)

    assert shown.exit_code == 0
    assert "server.port = 8443  (EXECUTION_PLANE_SERVER__PORT)\n" in shown.output
    assert "leases.lease_seconds = 30.0  (default)\n" in shown.output
    assert "operator@dev.localhost" in shown.output


def test_secrets_are_not_shown(run, settings, tmp_path):
    shown = run("check-config", **settings).output

    keys = json.loads((tmp_path / "keys.json").read_text())
    assert "hidden-password" not in shown
    assert "hidden-secret" not in shown
    assert keys["secrets"]["dev-1"] not in shown
    assert "database.url = (hidden)" in shown


def test_configuration_that_is_not_usable_is_explained(run, settings):
    settings.pop("EXECUTION_PLANE_DATABASE__URL")
    settings["EXECUTION_PLANE_SERVER__PROT"] = "1"

    shown = run("check-config", **settings)

    assert shown.exit_code == 1
    assert "EXECUTION_PLANE_DATABASE" in shown.stderr
    assert "EXECUTION_PLANE_SERVER__PROT" in shown.stderr
    assert not shown.stdout


def test_migrations_without_a_database_say_which_variable(run):
    shown = run("migrate")

    assert shown.exit_code == 1
    assert "EXECUTION_PLANE_DATABASE__URL is missing" in shown.stderr


def test_token_without_a_stack_says_how_to_start_one(run, tmp_path):
    shown = run("dev", "token", "--home", str(tmp_path), "--role", "runner")

    assert shown.exit_code == 5
    assert "make run" in shown.stderr


def test_nothing_to_clean_is_said(run, tmp_path):
    assert "There is no" in run("dev", "clean", "--home", str(tmp_path / "none")).output
