"""`teams` and who is in them."""

from typing import Any
from uuid import UUID

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.endpoint import Endpoint
from portal.api.pages import page
from portal.api.schema import operation
from portal.tenants import teams
from portal.tenants.models import Team as TeamRow
from portal.tenants.models import TeamMember as TeamMemberRow


class TeamOut(serializers.Serializer[Any]):
    """A group of members with a limit of its own."""

    id = serializers.UUIDField()
    organization = serializers.UUIDField(source="organization_id")
    slug = serializers.CharField()
    name = serializers.CharField()
    is_mine = serializers.SerializerMethodField(help_text="Whether the token's member is in it.")
    is_led_by_me = serializers.SerializerMethodField(
        help_text="Whether the token's member is its admin."
    )
    created_at = serializers.DateTimeField()

    def get_is_mine(self, team: TeamRow) -> bool:
        """Tell whether the token's member is in it."""
        return team.id in self.context["actor"].team_ids

    def get_is_led_by_me(self, team: TeamRow) -> bool:
        """Tell whether the token's member is its admin."""
        return team.id in self.context["actor"].admin_team_ids


class TeamIn(serializers.Serializer[Any]):
    """A team to be."""

    name = serializers.CharField(max_length=80)


class TeamMemberOut(serializers.Serializer[Any]):
    """A member's place in a team."""

    team = serializers.UUIDField(source="team_id")
    member = serializers.UUIDField(source="member_id")
    email = serializers.EmailField(source="member.user.email")
    name = serializers.CharField(source="member.user.name")
    is_admin = serializers.BooleanField()


class TeamMemberIn(serializers.Serializer[Any]):
    """How a member is in the team."""

    is_admin = serializers.BooleanField(default=False)


class Teams(Endpoint):
    """`/teams`."""

    needs = {"GET": "a token", "POST": "teams.manage"}

    @operation("list_teams", "List the organization's teams.", gives=TeamOut, pages=True)
    def get(self, request: Request) -> Response:
        """Answer all teams: their names are no secret inside the organization."""
        rows = TeamRow.objects.filter(organization=self.actor.organization)
        return page(self, rows, TeamOut, ordering=["name", "id"], context={"actor": self.actor})

    @operation("create_team", "Make a team.", takes=TeamIn, gives=TeamOut, status=201)
    def post(self, request: Request) -> Response:
        """Make one."""
        asked = TeamIn(data=request.data)
        asked.is_valid(raise_exception=True)
        made = teams.create_team(actor=self.actor, name=asked.validated_data["name"], now=self.now)
        return Response(TeamOut(made, context={"actor": self.actor}).data, status=201)


class Team(Endpoint):
    """`/teams/{id}`."""

    needs = {"GET": "a token", "PATCH": "teams.manage"}

    @operation("get_team", "Show a team.", gives=TeamOut)
    def get(self, request: Request, team_id: UUID) -> Response:
        """Answer it."""
        found = teams.get_team(actor=self.actor, team_id=team_id)
        return Response(TeamOut(found, context={"actor": self.actor}).data)

    @operation("rename_team", "Rename a team; its slug stays.", takes=TeamIn, gives=TeamOut)
    def patch(self, request: Request, team_id: UUID) -> Response:
        """Rename it."""
        asked = TeamIn(data=request.data)
        asked.is_valid(raise_exception=True)
        changed = teams.rename_team(
            actor=self.actor, team_id=team_id, name=asked.validated_data["name"], now=self.now
        )
        return Response(TeamOut(changed, context={"actor": self.actor}).data)


class TeamMembers(Endpoint):
    """`/teams/{id}/members`."""

    needs = {"GET": "members.view"}

    @operation("list_team_members", "List a team's members.", gives=TeamMemberOut, pages=True)
    def get(self, request: Request, team_id: UUID) -> Response:
        """Answer who is in it."""
        team = teams.get_team(actor=self.actor, team_id=team_id)
        rows = TeamMemberRow.objects.filter(team=team).select_related("member__user")
        return page(self, rows, TeamMemberOut, ordering=["member__user__email"])


class TeamMember(Endpoint):
    """`/teams/{id}/members/{id}`."""

    needs = {"PUT": "teams.manage", "DELETE": "teams.manage"}

    @operation(
        "set_team_member",
        "Put a member into a team, or make them its admin or no longer.",
        takes=TeamMemberIn,
        gives=TeamMemberOut,
    )
    def put(self, request: Request, team_id: UUID, member_id: UUID) -> Response:
        """Make it so."""
        asked = TeamMemberIn(data=request.data)
        asked.is_valid(raise_exception=True)
        place = teams.place_in_team(
            actor=self.actor,
            team_id=team_id,
            member_id=member_id,
            is_admin=asked.validated_data["is_admin"],
            now=self.now,
        )
        return Response(TeamMemberOut(place).data)

    @operation("remove_team_member", "Take a member out of a team.", status=204)
    def delete(self, request: Request, team_id: UUID, member_id: UUID) -> Response:
        """Take them out."""
        teams.remove_from_team(actor=self.actor, team_id=team_id, member_id=member_id, now=self.now)
        return Response(status=204)
