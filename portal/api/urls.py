"""Every path of the API, in the order of the documentation."""

from django.urls import path, re_path
from drf_spectacular.views import SpectacularAPIView

from portal.api import (
    audit_events,
    catalogue,
    instances,
    ledger,
    members,
    nodes,
    organizations,
    prices,
    quotas,
    teams,
    tokens,
    usage,
)
from portal.api.errors import elsewhere

_INSTANCE = "instances/<uuid:instance_id>"
_NODE = "nodes/<uuid:node_id>"

urlpatterns = [
    path("organizations", organizations.Organizations.as_view()),
    path("organizations/<uuid:organization_id>", organizations.Organization.as_view()),
    path("teams", teams.Teams.as_view()),
    path("teams/<uuid:team_id>", teams.Team.as_view()),
    path("teams/<uuid:team_id>/members", teams.TeamMembers.as_view()),
    path("teams/<uuid:team_id>/members/<uuid:member_id>", teams.TeamMember.as_view()),
    path("members", members.Members.as_view()),
    path("members/<uuid:member_id>", members.Member.as_view()),
    path("invitations", members.Invitations.as_view()),
    path("invitations/<uuid:invitation_id>", members.Invitation.as_view()),
    path("tokens", tokens.Tokens.as_view()),
    path("tokens/<uuid:token_id>", tokens.Token.as_view()),
    path("flavors", catalogue.Flavors.as_view()),
    path("flavors/<str:flavor>", catalogue.Flavor.as_view()),
    path("images", catalogue.Images.as_view()),
    path("images/<str:image>", catalogue.Image.as_view()),
    path("instances", instances.Instances.as_view()),
    path(_INSTANCE, instances.Instance.as_view()),
    path(f"{_INSTANCE}/start", instances.Start.as_view()),
    path(f"{_INSTANCE}/stop", instances.Stop.as_view()),
    path(f"{_INSTANCE}/terminate", instances.Terminate.as_view()),
    path(f"{_INSTANCE}/logs", instances.Logs.as_view()),
    path("quotas", quotas.Quotas.as_view()),
    path("usage", usage.Usage.as_view()),
    path("usage.csv", usage.UsageCsv.as_view()),
    path("ledger", ledger.Ledger.as_view()),
    path("ledger/balances", ledger.Balances.as_view()),
    path("prices", prices.Prices.as_view()),
    path("audit-events", audit_events.AuditEvents.as_view()),
    path("nodes", nodes.Nodes.as_view()),
    path(_NODE, nodes.Node.as_view()),
    path(f"{_NODE}/cordon", nodes.Cordon.as_view()),
    path(f"{_NODE}/uncordon", nodes.Uncordon.as_view()),
    path(f"{_NODE}/retire", nodes.Retire.as_view()),
    path("gpus", nodes.Gpus.as_view()),
    path("join-tokens", nodes.JoinTokens.as_view()),
    path("schema/", SpectacularAPIView.as_view(), name="api_schema"),
    path("schema", SpectacularAPIView.as_view(schema=None)),
    re_path(r"^.*$", elsewhere),
]
