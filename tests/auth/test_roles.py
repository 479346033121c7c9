"""What an identity may do, by the grants that name it."""

from __future__ import annotations

import pytest

from app.auth.roles import Identity, audiences_known, identify
from app.domain.errors import Forbidden
from app.settings import GrantSettings


def grant(**changes) -> GrantSettings:
    given = {"role": "runner", "issuer": "i", "audiences": ("a",), "accounts": ("me",)}
    return GrantSettings.model_validate(given | changes)


def identity(*grants: GrantSettings) -> Identity:
    return identify(grants, issuer="i", audience="a", account="me")


def test_identity_has_the_roles_of_its_matching_grants():
    me = identity(
        grant(role="runner"),
        grant(role="operator"),
        grant(role="pubsub", issuer="other"),
        grant(role="control-plane", audiences=("other",)),
        grant(role="control-plane", accounts=("other",)),
    )

    assert me.roles == {"runner", "operator"}


def test_account_without_a_grant_is_no_identity():
    with pytest.raises(Forbidden) as refusal:
        identity(grant(accounts=("other",)))

    assert refusal.value.context == {"cause": "account"}


def test_one_of_the_required_roles_is_enough():
    identity(grant(role="operator")).require("control-plane", "operator")


def test_another_role_is_forbidden():
    me = identity(grant(role="runner"))

    with pytest.raises(Forbidden) as refusal:
        me.require("control-plane", "operator")

    assert refusal.value.context == {"cause": "role"}


def test_runner_speaks_for_the_ids_of_its_prefixes_only():
    me = identity(grant(runner_id_prefixes=("ansible-", "spare-")))

    assert me.may_speak_for("ansible-1")
    assert me.may_speak_for("spare-")
    assert not me.may_speak_for("kubernetes-1")
    assert not me.may_speak_for("Ansible-1")
    assert not me.may_speak_for("")


def test_runner_without_prefixes_speaks_for_any_id():
    assert identity(grant()).may_speak_for("anything")


def test_only_a_runner_grant_speaks_for_runners():
    me = identity(grant(role="operator"))

    assert not me.may_speak_for("anything")
    assert not me.may_register("ansible", [])


def test_runner_registers_the_kinds_and_capabilities_of_its_grant():
    me = identity(grant(runner_kinds=("ansible",), runner_capabilities=("linux", "arm64")))

    assert me.may_register("ansible", ["linux"])
    assert me.may_register("ansible", [])
    assert not me.may_register("ansible", ["linux", "gpu"])
    assert not me.may_register("kubernetes", ["linux"])


def test_runner_without_limits_registers_anything():
    assert identity(grant()).may_register("ssh", ["anything"])


def test_grants_do_not_add_up():
    me = identity(
        grant(runner_id_prefixes=("a-",), runner_kinds=("ansible",), runner_capabilities=("x",)),
        grant(runner_id_prefixes=("k-",), runner_kinds=("kubernetes",), runner_capabilities=("y",)),
    )

    assert not me.may_register("ansible", ["y"])
    assert not me.may_register("ansible", ["x", "y"])
    assert me.may_register("ansible", ["x"], runner_id="a-1")
    assert not me.may_register("ansible", ["x"], runner_id="k-1")


def test_audiences_known_are_those_of_the_issuers_grants():
    grants = (grant(audiences=("a", "b")), grant(audiences=("c",)), grant(issuer="o"))

    assert audiences_known(grants, "i") == {"a", "b", "c"}
    assert audiences_known(grants, "nobody") == set()
