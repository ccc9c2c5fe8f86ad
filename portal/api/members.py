"""`members` and `invitations`."""

from typing import Any
from uuid import UUID

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.endpoint import Endpoint
from portal.api.pages import page
from portal.api.schema import operation
from portal.tenants import invitations, mail, members, teams
from portal.tenants.models import Member as MemberRow
from portal.tenants.models import Role


class MemberOut(serializers.Serializer[Any]):
    """A person in the organization."""

    id = serializers.UUIDField()
    organization = serializers.UUIDField(source="organization_id")
    email = serializers.EmailField(source="user.email")
    name = serializers.CharField(source="user.name")
    role = serializers.ChoiceField(Role.choices)
    created_at = serializers.DateTimeField()


class MemberIn(serializers.Serializer[Any]):
    """What can be changed."""

    role = serializers.ChoiceField(Role.choices)


class InvitationOut(serializers.Serializer[Any]):
    """An open invitation."""

    id = serializers.UUIDField()
    organization = serializers.UUIDField(source="organization_id")
    email = serializers.EmailField()
    role = serializers.ChoiceField(Role.choices)
    team = serializers.UUIDField(source="team_id", allow_null=True)
    invited_by = serializers.UUIDField(source="invited_by_id", help_text="A member's id.")
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()


class NewInvitationOut(InvitationOut):
    """An invitation just sent."""

    link = serializers.URLField(
        allow_null=True,
        help_text="As in the letter. Shown once: null when the request is repeated.",
    )


class InvitationIn(serializers.Serializer[Any]):
    """Whom to invite."""

    email = serializers.EmailField()
    role = serializers.ChoiceField(Role.choices, default=Role.MEMBER)
    team = serializers.CharField(
        allow_null=True, default=None, max_length=80, help_text="A team's id or slug."
    )


class Members(Endpoint):
    """`/members`."""

    needs = {"GET": "members.view"}

    @operation("list_members", "List the members.", gives=MemberOut, pages=True)
    def get(self, request: Request) -> Response:
        """Answer who is in the organization now."""
        rows = MemberRow.objects.filter(
            organization=self.actor.organization, removed_at=None
        ).select_related("user")
        return page(self, rows, MemberOut, ordering=["user__email"])


class Member(Endpoint):
    """`/members/{id}`."""

    needs = {"GET": "members.view", "PATCH": "members.manage", "DELETE": "members.manage"}

    @operation("get_member", "Show a member.", gives=MemberOut)
    def get(self, request: Request, member_id: UUID) -> Response:
        """Answer one."""
        return Response(MemberOut(members.get_member(actor=self.actor, member_id=member_id)).data)

    @operation("change_role", "Give a member another role.", takes=MemberIn, gives=MemberOut)
    def patch(self, request: Request, member_id: UUID) -> Response:
        """Change the role."""
        asked = MemberIn(data=request.data)
        asked.is_valid(raise_exception=True)
        changed = members.change_role(
            actor=self.actor,
            member_id=member_id,
            role=Role(asked.validated_data["role"]),
            now=self.now,
        )
        return Response(MemberOut(changed).data)

    @operation("remove_member", "Take a person out of the organization.", status=204)
    def delete(self, request: Request, member_id: UUID) -> Response:
        """Remove them; rights and tokens end at once."""
        members.remove_member(actor=self.actor, member_id=member_id, now=self.now)
        return Response(status=204)


class Invitations(Endpoint):
    """`/invitations`."""

    needs = {"GET": "members.manage", "POST": "members.manage"}
    shown_once = ("link",)

    @operation("list_invitations", "List the open invitations.", gives=InvitationOut, pages=True)
    def get(self, request: Request) -> Response:
        """Answer those that can still be accepted."""
        return page(self, invitations.visible(actor=self.actor), InvitationOut)

    @operation(
        "invite",
        "Invite a person by e-mail; again replaces the earlier link.",
        takes=InvitationIn,
        gives=NewInvitationOut,
        status=201,
    )
    def post(self, request: Request) -> Response:
        """Invite."""
        asked = InvitationIn(data=request.data)
        asked.is_valid(raise_exception=True)
        fields = asked.validated_data
        team = teams.find_team(actor=self.actor, key=fields["team"]) if fields["team"] else None
        made = invitations.invite(
            actor=self.actor,
            email=fields["email"],
            role=Role(fields["role"]),
            team_id=team.id if team else None,
            now=self.now,
        )
        link = mail.invitation_link(secret=made.secret)
        return Response({**InvitationOut(made).data, "link": link}, status=201)


class Invitation(Endpoint):
    """`/invitations/{id}`."""

    needs = {"DELETE": "members.manage"}

    @operation("revoke_invitation", "Close an open invitation.", status=204)
    def delete(self, request: Request, invitation_id: UUID) -> Response:
        """Close it."""
        invitations.revoke_invitation(actor=self.actor, invitation_id=invitation_id, now=self.now)
        return Response(status=204)
