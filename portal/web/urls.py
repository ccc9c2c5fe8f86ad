"""Every page's path, in the order of the navigation."""

from django.urls import URLPattern, URLResolver, include, path

from portal.web import (
    audit,
    dashboard,
    health,
    home,
    instances,
    invitations,
    launch,
    members,
    operate,
    organization,
    prices,
    profile,
    quotas,
    styleguide,
    teams,
    tokens,
    usage,
)

_instance: list[URLPattern | URLResolver] = [
    path("", instances.show, name="instance"),
    path("logs/", instances.logs, name="instance-logs"),
    path("events/", instances.story, name="instance-events"),
    path("bill/", instances.bill, name="instance-bill"),
    path("series/", instances.series, name="instance-series"),
    path("start/", instances.start, name="instance-start"),
    path("stop/", instances.stop, name="instance-stop"),
    path("terminate/", instances.terminate, name="instance-terminate"),
    path("stop-at/", instances.stop_at, name="instance-stop-at"),
]
_organization: list[URLPattern | URLResolver] = [
    path("", dashboard.show, name="dashboard"),
    path("instances/", instances.index, name="instances"),
    path("instances/new/", launch.form, name="launch"),
    path("instances/new/preview/", launch.preview, name="launch-preview"),
    path("instances/<uuid:instance_id>/", include(_instance)),
    path("usage/", usage.show, name="usage"),
    path("usage.csv", usage.download, name="usage-csv"),
    path("usage/instances/<uuid:instance_id>/", usage.bill, name="usage-bill"),
    path("quotas/", quotas.show, name="quotas"),
    path("prices/", prices.show, name="prices"),
    path("teams/", teams.index, name="teams"),
    path("teams/<uuid:team_id>/", teams.show, name="team"),
    path("members/", members.index, name="members"),
    path("members/<uuid:member_id>/", members.change, name="member-change"),
    path("members/leave/", members.leave, name="members-leave"),
    path(
        "members/invitations/<uuid:invitation_id>/revoke/",
        invitations.revoke,
        name="invitation-revoke",
    ),
    path("tokens/", tokens.index, name="tokens"),
    path("tokens/<uuid:token_id>/revoke/", tokens.revoke, name="token-revoke"),
    path("audit/", audit.index, name="audit"),
    path("settings/", organization.settings, name="organization"),
]
operator_pages: list[URLPattern | URLResolver] = [
    path("nodes/", operate.index, name="nodes"),
    path("nodes/join/", operate.join, name="nodes-join"),
    path("nodes/<uuid:node_id>/", operate.show, name="node"),
    path("nodes/<uuid:node_id>/series/", operate.series, name="node-series"),
    path("nodes/<uuid:node_id>/<slug:act>/", operate.change, name="node-change"),
    path("catalogue/", operate.catalogue, name="catalogue"),
]

urlpatterns = [
    path("", home.show, name="home"),
    path("organizations/new/", home.new_organization, name="organization-new"),
    path("invitations/<str:secret>/", invitations.accept, name="invitation"),
    path("o/<slug:slug>/", include(_organization)),
    path("operate/", include(operator_pages)),
    path("profile/", profile.show, name="profile"),
    path("profile/appearance/", profile.appearance, name="appearance"),
    path("account/", include("allauth.account.urls")),
    path("styleguide/", styleguide.show, name="styleguide"),
    path("healthz", health.live, name="healthz"),
    path("readyz", health.ready, name="readyz"),
]
