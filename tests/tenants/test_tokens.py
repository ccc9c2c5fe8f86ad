"""API tokens: hashed, narrowing, expiring, revoked."""

import hashlib
from datetime import timedelta

import pytest

from portal.errors import Forbidden, NotFound
from portal.tenants import members, tokens
from portal.tenants.models import ApiToken, AuditEvent, Member, Role
from portal.tenants.roles import Actor
from tests import factories as make
from tests.tenants.conftest import Acme

NOW = make.NOW
DAY = timedelta(days=1)


def issue(actor: Actor, *scopes: str, days: int | None = None) -> tuple[ApiToken, str]:
    return tokens.issue(
        actor=actor,
        name="laptop",
        scopes=scopes or ["full"],
        expires_at=None if days is None else NOW + days * DAY,
        now=NOW,
    )


def refused(secret: str, *, days: int = 0) -> str:
    with pytest.raises(tokens.UnableToAuthenticate) as refusal:
        tokens.authenticate(secret=secret, now=NOW + days * DAY)
    assert refusal.value.status == 401
    return refusal.value.code


def test_a_token_acts_for_its_member(acme: Acme):
    token, secret = issue(acme.actor(acme.member), "read")

    actor = tokens.authenticate(secret=secret, now=NOW)

    assert (actor.member, actor.organization, actor.token) == (
        acme.member,
        acme.organization,
        token,
    )
    assert actor.team_ids == {acme.team.id}
    assert actor.may("instances.view", team_id=acme.team.id)
    assert not actor.may("instances.launch", team_id=acme.team.id)


def test_only_a_hash_of_the_secret_is_kept(acme: Acme):
    token, secret = issue(acme.actor(acme.member))

    assert secret.startswith(f"corral_{token.prefix}_")
    assert len(secret) > 50
    assert token.secret_hash == hashlib.sha256(secret.encode()).hexdigest()
    assert secret not in str(list(ApiToken.objects.values()))
    assert secret not in str(list(AuditEvent.objects.values()))


def test_a_token_ends_on_its_day_and_by_revocation(acme: Acme):
    actor = acme.actor(acme.member)
    _, short = issue(actor, days=1)
    token, revoked = issue(actor)

    assert tokens.authenticate(secret=short, now=NOW + DAY / 2).member == acme.member
    assert refused(short, days=1) == "token_expired"
    tokens.revoke(actor=actor, token_id=token.id, now=NOW)
    assert refused(revoked) == "token_revoked"
    assert refused("corral_00000000_guess") == "token_unknown"
    assert refused("") == "token_unknown"


def test_a_token_of_a_blocked_person_opens_nothing(acme: Acme):
    _, secret = issue(acme.actor(acme.member))
    acme.member.user.is_active = False
    acme.member.user.save()

    assert refused(secret) == "token_revoked"


def test_a_lower_role_acts_at_once_on_tokens(acme: Acme):
    _, secret = issue(acme.actor(acme.admin))

    members.change_role(
        actor=acme.actor(acme.owner), member_id=acme.admin.id, role=Role.VIEWER, now=NOW
    )

    assert not tokens.authenticate(secret=secret, now=NOW).may("members.manage")


def test_last_use_is_noted_at_most_once_a_minute(acme: Acme):
    token, secret = issue(acme.actor(acme.member))

    for seconds, expected in [(0, 0), (30, 0), (60, 60)]:
        tokens.authenticate(secret=secret, now=NOW + timedelta(seconds=seconds))
        token.refresh_from_db()
        assert token.last_used_at == NOW + timedelta(seconds=expected)


@pytest.mark.parametrize(
    ("scopes", "code"),
    [
        ([], "scope_unknown"),
        (["everything"], "scope_unknown"),
        (["read", "root"], "scope_unknown"),
        (["operator"], "scope_too_wide"),
    ],
)
def test_scopes_that_make_no_sense_are_refused(acme: Acme, scopes: list[str], code: str):
    with pytest.raises(tokens.UnableToIssue) as refusal:
        tokens.issue(
            actor=acme.actor(acme.owner), name="x", scopes=scopes, expires_at=None, now=NOW
        )

    assert refusal.value.code == code
    assert "scopes" in refusal.value.details


def test_a_token_needs_a_name_and_a_day_to_come(acme: Acme):
    actor = acme.actor(acme.member)

    with pytest.raises(tokens.UnableToIssue, match="name"):
        tokens.issue(actor=actor, name=" ", scopes=["read"], expires_at=None, now=NOW)
    with pytest.raises(tokens.UnableToIssue, match="later"):
        tokens.issue(actor=actor, name="x", scopes=["read"], expires_at=NOW, now=NOW)


def test_an_operators_token_can_be_for_operating_only(acme: Acme):
    acme.owner.user.is_operator = True
    acme.owner.user.save()

    _, secret = issue(acme.actor(acme.owner), "operator")

    actor = tokens.authenticate(secret=secret, now=NOW)
    assert actor.is_operator
    assert not actor.may("instances.view")


def test_a_token_makes_no_wider_or_longer_token(acme: Acme):
    _, secret = issue(acme.actor(acme.admin), "admin", days=3)
    program = tokens.authenticate(secret=secret, now=NOW)

    with pytest.raises(tokens.UnableToIssue, match="scopes"):
        issue(program, "full")
    narrower, _ = issue(program, "admin", days=30)

    assert narrower.expires_at == NOW + 3 * DAY
    assert issue(program, "admin")[0].expires_at == NOW + 3 * DAY
    assert issue(program, "admin", days=1)[0].expires_at == NOW + DAY


def test_a_token_without_the_scope_makes_none(acme: Acme):
    _, secret = issue(acme.actor(acme.owner), "read", "instances", "money")

    with pytest.raises(Forbidden):
        issue(tokens.authenticate(secret=secret, now=NOW), "read")


def test_revoking_a_token_revokes_what_it_made(acme: Acme):
    root, secret = issue(acme.actor(acme.owner), "full")
    _, child = issue(tokens.authenticate(secret=secret, now=NOW), "full")
    _, grandchild = issue(tokens.authenticate(secret=child, now=NOW), "read")

    tokens.revoke(actor=acme.actor(acme.owner), token_id=root.id, now=NOW)

    assert refused(child) == refused(grandchild) == "token_revoked"
    assert AuditEvent.objects.filter(verb="token.revoke").count() == 3


def test_people_see_and_revoke_their_own_tokens_and_admins_all(acme: Acme):
    def seen(by: Member) -> set[ApiToken]:
        return set(tokens.visible(actor=acme.actor(by)))

    mine, _ = issue(acme.actor(acme.member))
    others, _ = issue(acme.actor(acme.viewer), "read")

    assert seen(acme.member) == {mine}
    assert seen(acme.viewer) == {others}
    assert seen(acme.admin) == {mine, others}
    with pytest.raises(NotFound):
        tokens.revoke(actor=acme.actor(acme.member), token_id=others.id, now=NOW)
    tokens.revoke(actor=acme.actor(acme.admin), token_id=mine.id, now=NOW)
    mine.refresh_from_db()
    assert mine.revoked_at == NOW


def test_a_foreign_token_answers_like_a_missing_one(acme: Acme):
    elsewhere = make.organization()
    foreign = ApiToken(
        organization=elsewhere, member=make.member(elsewhere), name="x", prefix="x",
        secret_hash="x", scopes=["full"], created_at=NOW,
    )  # fmt: skip
    foreign.save(force_insert=True)

    with pytest.raises(NotFound):
        tokens.revoke(actor=acme.actor(acme.owner), token_id=foreign.id, now=NOW)
