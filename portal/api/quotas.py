"""`quotas`: limits of GPUs for the organization, its teams and its members."""

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.endpoint import Endpoint, listed
from portal.api.schema import operation, paged
from portal.tenants import members, teams
from scheduler import quotas


class QuotaOut(serializers.Serializer[Any]):
    """What one level may use, uses, and has left; all in thousandths of a GPU."""

    level = serializers.ChoiceField(["organization", "team", "member"])
    team = serializers.UUIDField(source="team.id", default=None, allow_null=True)
    team_name = serializers.CharField(source="team.name", default=None, allow_null=True)
    member = serializers.UUIDField(source="member.id", default=None, allow_null=True)
    member_name = serializers.CharField(source="member.user", default=None, allow_null=True)
    limit_milli_gpus = serializers.IntegerField(
        source="limit", allow_null=True, help_text="Null: no limit on this level."
    )
    used_milli_gpus = serializers.IntegerField(source="used")
    left_milli_gpus = serializers.IntegerField(source="left", allow_null=True)


class QuotaIn(serializers.Serializer[Any]):
    """A limit: of a team, of a member, or, with neither, of the organization."""

    team = serializers.CharField(
        max_length=80, allow_null=True, default=None, help_text="A team's id or slug."
    )
    member = serializers.UUIDField(allow_null=True, default=None)
    limit_milli_gpus = serializers.IntegerField(
        allow_null=True, min_value=0, help_text="In thousandths of a GPU; null: no limit."
    )


class Quotas(Endpoint):
    """`/quotas`."""

    needs = {"GET": "quotas.view", "PUT": "quotas.manage"}

    @operation("list_quotas", "List the limits that one may see.", gives=paged(QuotaOut))
    def get(self, request: Request) -> Response:
        """Answer the organization's line, then teams, then members."""
        return listed([QuotaOut(line).data for line in quotas.visible(actor=self.actor)])

    @operation(
        "set_quota", "Set or lift a limit; what runs goes on.", takes=QuotaIn, gives=QuotaOut
    )
    def put(self, request: Request) -> Response:
        """Set it, and answer how that level stands now."""
        asked = QuotaIn(data=request.data)
        asked.is_valid(raise_exception=True)
        fields = asked.validated_data
        team = teams.find_team(actor=self.actor, key=fields["team"]) if fields["team"] else None
        member = (
            members.get_member(actor=self.actor, member_id=fields["member"])
            if fields["member"]
            else None
        )
        quotas.set_limit(
            actor=self.actor,
            team=team,
            member=member,
            milli_gpus=fields["limit_milli_gpus"],
            now=self.now,
        )
        lines = quotas.standing(organization=self.actor.organization)
        return Response(
            next(
                QuotaOut(line).data for line in lines if (line.team, line.member) == (team, member)
            )
        )
