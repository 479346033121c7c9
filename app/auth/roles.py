"""Who a verified caller is, and what the settings let it do."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from app.auth.causes import forbidden
from app.settings import GrantSettings, Role


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller whose token was verified, with at least one grant that names it.

    `account` is the verified e-mail, or `sub` where the token has no e-mail; `issuer` is the
    issuer's key in the settings; `grants` are those that match issuer, audience and account.
    """

    account: str
    issuer: str
    roles: frozenset[Role]
    grants: tuple[GrantSettings, ...]

    def require(self, *roles: Role) -> None:
        """Return if the caller has one of `roles`; otherwise Forbidden."""
        if self.roles.isdisjoint(roles):
            raise forbidden("role")

    def may_speak_for(self, runner_id: str) -> bool:
        """Whether a runner grant covers this runner id."""
        return any(_covers_id(grant, runner_id) for grant in self._runner_grants())

    def may_register(
        self, kind: str, capabilities: Collection[str], *, runner_id: str | None = None
    ) -> bool:
        """Whether one single runner grant covers the kind and every capability.

        With `runner_id` the same grant must cover that too: the id of one grant and the kind of
        another add up to nothing.
        """
        return any(
            (runner_id is None or _covers_id(grant, runner_id))
            and (not grant.runner_kinds or kind in grant.runner_kinds)
            and (
                not grant.runner_capabilities
                or set(capabilities).issubset(grant.runner_capabilities)
            )
            for grant in self._runner_grants()
        )

    def _runner_grants(self) -> Iterable[GrantSettings]:
        return (grant for grant in self.grants if grant.role == "runner")


def audiences_known(grants: Iterable[GrantSettings], issuer: str) -> frozenset[str]:
    """Every audience that some grant accepts from this issuer (its key in the settings)."""
    return frozenset(
        audience for grant in grants if grant.issuer == issuer for audience in grant.audiences
    )


def identify(
    grants: Iterable[GrantSettings], *, issuer: str, audience: str, account: str
) -> Identity:
    """The identity that a verified token proves; Forbidden if no grant names it exactly."""
    matching = tuple(
        grant
        for grant in grants
        if grant.issuer == issuer and audience in grant.audiences and account in grant.accounts
    )
    if not matching:
        raise forbidden("account")
    return Identity(account, issuer, frozenset(grant.role for grant in matching), matching)


def _covers_id(grant: GrantSettings, runner_id: str) -> bool:
    prefixes = grant.runner_id_prefixes
    return not prefixes or runner_id.startswith(prefixes)
