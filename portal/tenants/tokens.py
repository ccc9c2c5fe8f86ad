"""API tokens: shown once, kept as a hash, never more than their member may, gone when revoked."""

import hashlib
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from portal.errors import DomainError, Invalid, NotFound
from portal.tenants import access, audit
from portal.tenants.models import ApiToken
from portal.tenants.roles import SCOPES, Actor, Reach, require
from portal.tenants.scope import every_tenant, scope

# How exact `last_used_at` is: a write per request would cost more than it tells.
_USED_EVERY = timedelta(minutes=1)
_LONGEST_NAME = 80  # as the column


class UnableToIssue(Invalid):
    """The token asked for makes no sense, or would be more than its maker has."""


class UnableToAuthenticate(DomainError):
    """The secret opens nothing."""

    status = 401


class UnableToFindToken(NotFound):
    """No such token that the actor may see."""


@transaction.atomic
def issue(
    *,
    actor: Actor,
    name: str,
    scopes: Sequence[str],
    expires_at: datetime | None,
    now: datetime,
) -> tuple[ApiToken, str]:
    """Make a token for the actor himself; return it and its secret, which nobody sees again.

    A token made by means of a token has no scope and no day more than that one, and ends with it.
    Raises UnableToAct, UnableToIssue.
    """
    require(actor, "tokens.manage", owner_id=actor.member.id)
    chosen = _checked_scopes(actor, scopes)
    expires_at = _checked_end(actor, expires_at, now)
    prefix = secrets.token_hex(4)
    secret = f"corral_{prefix}_{secrets.token_urlsafe(32)}"
    token = ApiToken.objects.create(
        organization=actor.organization,
        member=actor.member,
        name=_checked_name(name),
        prefix=prefix,
        secret_hash=fingerprint(secret),
        scopes=chosen,
        created_at=now,
        expires_at=expires_at,
        issued_with=actor.token,
    )
    _note(actor, "token.issue", token, now)
    return token, secret


def authenticate(*, secret: str, now: datetime) -> Actor:
    """Return who acts by this secret. Raises UnableToAuthenticate (401), saying why."""
    with every_tenant("a secret itself says whose it is"):
        token = (
            ApiToken.objects.select_related("organization", "member__user", "member__organization")
            .filter(secret_hash=fingerprint(secret))
            .first()
        )
    if token is None:
        raise UnableToAuthenticate(
            "token_unknown",
            _("This token is not known here."),
            help=_("Make a token on the organization's page “API tokens”."),
        )
    if token.revoked_at is not None:
        raise UnableToAuthenticate(
            "token_revoked", _("This token was revoked."), help=_("Make a new token.")
        )
    if token.expires_at is not None and token.expires_at <= now:
        raise UnableToAuthenticate(
            "token_expired", _("This token has expired."), help=_("Make a new token.")
        )
    try:
        actor = access.actor_for_member(member=token.member, token=token)
    except access.UnableToEnter as error:
        raise UnableToAuthenticate(
            "token_revoked",
            _("The member of this token is no longer in the organization."),
            help=_("Ask an owner or admin of the organization."),
        ) from error
    if token.last_used_at is None or token.last_used_at <= now - _USED_EVERY:
        with scope(organization=token.organization):
            ApiToken.objects.filter(id=token.id).update(last_used_at=now)
    return actor


def visible(*, actor: Actor) -> QuerySet[ApiToken]:
    """Return the tokens the actor may see and revoke: all, or their own; newest first."""
    reach = actor.reach("tokens.manage")
    tokens = ApiToken.objects.filter(organization=actor.organization)
    if Reach.ALL not in reach:
        tokens = tokens.filter(member=actor.member) if Reach.OWN in reach else tokens.none()
    return tokens.select_related("member__user").order_by("-created_at", "-id")


@transaction.atomic
def revoke(*, actor: Actor, token_id: UUID, now: datetime) -> ApiToken:
    """End a token at once, and those that were issued by means of it. Again changes nothing."""
    token = visible(actor=actor).filter(id=token_id).first()
    if token is None:
        raise UnableToFindToken("token_not_found", _("There is no such token."))
    require(actor, "tokens.manage", owner_id=token.member_id)
    if token.revoked_at is None:
        for ended in revoke_all(Q(id=token.id), now=now):
            _note(actor, "token.revoke", ended, now)
        token.refresh_from_db(fields=["revoked_at"])
    return token


def revoke_all(which: Q, *, now: datetime) -> list[ApiToken]:
    """End the live tokens that match, with all that descend from them; return those ended.

    For verbs of this package that have already checked the right; needs a scope and a transaction.
    """
    ended: list[ApiToken] = []
    live = ApiToken.objects.filter(revoked_at=None).select_for_update()
    generation = list(live.filter(which))
    while generation:
        ended += generation
        ids = [token.id for token in generation]
        ApiToken.objects.filter(id__in=ids).update(revoked_at=now)
        generation = list(live.filter(issued_with__in=ids))
    return ended


def fingerprint(secret: str) -> str:
    """Return the form in which a secret is kept."""
    # The secret is 256 random bits, so a plain hash is as good as a slow one.
    return hashlib.sha256(secret.encode()).hexdigest()


def _checked_name(name: str) -> str:
    name = name.strip()
    if not name or len(name) > _LONGEST_NAME:
        sentence = _("Give the token a name of at most %(limit)d characters.") % {
            "limit": _LONGEST_NAME
        }
        raise UnableToIssue("token_name_invalid", sentence, details={"name": [sentence]})
    return name


def _checked_scopes(actor: Actor, scopes: Sequence[str]) -> list[str]:
    chosen = [scope for scope in SCOPES if scope in set(scopes)]
    if not chosen or set(scopes) - set(chosen):
        sentence = _("Choose at least one of these scopes: %(scopes)s.") % {
            "scopes": ", ".join(SCOPES)
        }
        raise UnableToIssue("scope_unknown", sentence, details={"scopes": [sentence]})
    if "operator" in chosen and not actor.is_operator:
        sentence = _("Only an operator can make a token with the scope “operator”.")
        raise UnableToIssue("scope_too_wide", sentence, details={"scopes": [sentence]})
    if actor.token is not None:
        had = set(actor.token.scopes)
        if "full" not in had and not set(chosen) <= had:
            sentence = _("A token can only make tokens with scopes that it has itself.")
            raise UnableToIssue("scope_too_wide", sentence, details={"scopes": [sentence]})
    return chosen


def _checked_end(actor: Actor, expires_at: datetime | None, now: datetime) -> datetime | None:
    if expires_at is not None and expires_at <= now:
        sentence = _("The token would already have expired: choose a later time.")
        raise UnableToIssue("expiry_in_the_past", sentence, details={"expires_at": [sentence]})
    limit = actor.token.expires_at if actor.token is not None else None
    if limit is None:
        return expires_at
    return limit if expires_at is None else min(limit, expires_at)


def _note(actor: Actor, verb: str, token: ApiToken, now: datetime) -> None:
    audit.record(
        actor=actor,
        organization=actor.organization,
        verb=verb,
        target_kind="token",
        target_id=token.id,
        target_name=token.name,
        details={"prefix": token.prefix, "scopes": token.scopes},
        now=now,
    )
