"""`instances`: launch, look, stop, start, terminate, read logs."""

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.endpoint import Endpoint
from portal.api.fields import MoneyField
from portal.api.pages import Pages
from portal.api.schema import operation
from portal.billing import prices, usage
from portal.instances import actions, reasons
from portal.instances.models import Instance as InstanceRow
from portal.instances.models import State, Wanted
from portal.money import Money
from portal.tenants import teams
from scheduler import queue, words
from scheduler.models import Request as QueuedRequest
from scheduler.models import Standing


class EstimateOut(serializers.Serializer[Any]):
    """When it may start: an estimate, never a promise."""

    low_seconds = serializers.FloatField(help_text="From now, at the earliest.")
    high_seconds = serializers.FloatField(allow_null=True, help_text="Null: nobody can tell.")
    words = serializers.CharField()
    basis = serializers.CharField(help_text="What it rests on, in words.")


class InstanceOut(serializers.Serializer[Any]):
    """An instance, where it stands, and why."""

    id = serializers.UUIDField()
    organization = serializers.UUIDField()
    team = serializers.UUIDField()
    team_name = serializers.CharField()
    member = serializers.UUIDField(help_text="Who launched it.")
    member_name = serializers.CharField()
    name = serializers.CharField()
    flavor = serializers.CharField(help_text="Its code.")
    image = serializers.CharField(help_text="Its code.")
    command = serializers.ListField(
        child=serializers.CharField(), help_text="Empty: the image's own."
    )
    env_names = serializers.ListField(
        child=serializers.CharField(), help_text="Values are never shown."
    )
    priority = serializers.IntegerField()
    state = serializers.ChoiceField(State.choices)
    state_words = serializers.CharField()
    since = serializers.DateTimeField(help_text="When it came into this state.")
    reason_code = serializers.CharField()
    reason = serializers.CharField(help_text="Why it is there, or why it waits.")
    wanted = serializers.ChoiceField(Wanted.choices, help_text="What was last asked for.")
    queue_position = serializers.IntegerField(allow_null=True, help_text="Null: does not wait.")
    estimate = EstimateOut(allow_null=True)
    sooner = serializers.ListField(
        child=serializers.CharField(), help_text="What would start it now."
    )
    gpu_count = serializers.IntegerField()
    milli_gpus = serializers.IntegerField(help_text="What it takes, in thousandths of a GPU.")
    price_per_hour = MoneyField(allow_null=True, help_text="Today's price while it runs.")
    cost = MoneyField(allow_null=True, help_text="So far, exact; null without a right to usage.")
    run = serializers.IntegerField(help_text="How many times it was started.")
    node_name = serializers.CharField(allow_null=True)
    progress = serializers.IntegerField(allow_null=True, help_text="Of starting, 0 to 100.")
    ports = serializers.DictField(
        child=serializers.IntegerField(), help_text="Port in the container: port on the node."
    )
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    stop_at = serializers.DateTimeField(allow_null=True, help_text="The portal stops it then.")


class LaunchIn(serializers.Serializer[Any]):
    """What to launch."""

    team = serializers.CharField(max_length=80, help_text="A team's id or slug.")
    name = serializers.CharField(max_length=63)
    flavor = serializers.CharField(max_length=60, help_text="A flavor's code or id.")
    image = serializers.CharField(max_length=60, help_text="An image's code or id.")
    command = serializers.ListField(
        child=serializers.CharField(allow_blank=True, trim_whitespace=False), default=list
    )
    env = serializers.DictField(
        child=serializers.CharField(allow_blank=True, trim_whitespace=False), default=dict
    )
    priority = serializers.IntegerField(
        default=0, min_value=-100, max_value=100, help_text="Counts inside the organization."
    )
    stop_at = serializers.DateTimeField(
        allow_null=True, default=None, help_text="When the portal is to stop it."
    )


class InstanceIn(serializers.Serializer[Any]):
    """What can be changed."""

    stop_at = serializers.DateTimeField(allow_null=True, help_text="Null: never by itself.")


class LogsOut(serializers.Serializer[Any]):
    """The last lines that the present run wrote."""

    text = serializers.CharField()


class Instances(Endpoint):
    """`/instances`."""

    needs = {"GET": "instances.view", "POST": "instances.launch"}

    @operation(
        "list_instances",
        "List the instances that one may see, the newest first.",
        gives=InstanceOut,
        pages=True,
        query=[
            OpenApiParameter("state", OpenApiTypes.STR, many=True, enum=State.values),
            OpenApiParameter("team", OpenApiTypes.STR, description="A team's id or slug."),
            OpenApiParameter("name", OpenApiTypes.STR, description="Exactly this name."),
        ],
    )
    def get(self, request: Request) -> Response:
        """Answer one page."""
        pages = Pages(["-created_at", "id"])
        found = pages.paginate_queryset(self._asked(request), request, view=self)
        return pages.get_paginated_response(shown(self, found or []))

    @operation(
        "launch_instance",
        "Launch an instance; it waits in the queue until GPUs are free.",
        takes=LaunchIn,
        gives=InstanceOut,
        status=201,
    )
    def post(self, request: Request) -> Response:
        """Launch one."""
        asked = LaunchIn(data=request.data)
        asked.is_valid(raise_exception=True)
        fields = dict(asked.validated_data)
        team = teams.find_team(actor=self.actor, key=fields.pop("team"))
        made = actions.launch(actor=self.actor, team_id=team.id, now=self.now, **fields)
        location = request.build_absolute_uri(f"{request.path.rstrip('/')}/{made.id}")
        return Response(shown(self, [made])[0], status=201, headers={"Location": location})

    def _asked(self, request: Request) -> QuerySet[InstanceRow]:
        rows = actions.visible(actor=self.actor)
        texts = request.query_params.getlist("state")
        states = [state.upper() for text in texts for state in text.split(",") if state]
        if unknown := set(states) - set(State.values):
            raise ValidationError({"state": [_("Not a state: %s.") % ", ".join(sorted(unknown))]})
        if states:
            rows = rows.filter(state__in=states)
        if key := request.query_params.get("team"):
            rows = rows.filter(team=teams.find_team(actor=self.actor, key=key))
        if name := request.query_params.get("name"):
            rows = rows.filter(name=name)
        return rows


class Instance(Endpoint):
    """`/instances/{id}`."""

    needs = {"GET": "instances.view", "PATCH": "instances.manage"}

    @operation("get_instance", "Show an instance.", gives=InstanceOut)
    def get(self, request: Request, instance_id: UUID) -> Response:
        """Answer one."""
        found = actions.get(actor=self.actor, instance_id=instance_id)
        return Response(shown(self, [found])[0])

    @operation(
        "set_stop_time",
        "Have the portal stop an instance at a time, or no longer.",
        takes=InstanceIn,
        gives=InstanceOut,
    )
    def patch(self, request: Request, instance_id: UUID) -> Response:
        """Set the time."""
        asked = InstanceIn(data=request.data)
        asked.is_valid(raise_exception=True)
        changed = actions.set_stop_at(
            actor=self.actor,
            instance_id=instance_id,
            stop_at=asked.validated_data["stop_at"],
            now=self.now,
        )
        return Response(shown(self, [changed])[0])


class Stop(Endpoint):
    """`/instances/{id}/stop`."""

    needs = {"POST": "instances.manage"}

    @operation("stop_instance", "End a run; it can be started again.", gives=InstanceOut)
    def post(self, request: Request, instance_id: UUID) -> Response:
        """Ask for it; the machine follows."""
        changed = actions.stop(actor=self.actor, instance_id=instance_id, now=self.now)
        return Response(shown(self, [changed])[0])


class Start(Endpoint):
    """`/instances/{id}/start`."""

    needs = {"POST": "instances.manage"}

    @operation("start_instance", "Queue a stopped instance again.", gives=InstanceOut)
    def post(self, request: Request, instance_id: UUID) -> Response:
        """Queue it."""
        changed = actions.start(actor=self.actor, instance_id=instance_id, now=self.now)
        return Response(shown(self, [changed])[0])


class Terminate(Endpoint):
    """`/instances/{id}/terminate`."""

    needs = {"POST": "instances.manage"}

    @operation("terminate_instance", "End an instance for good.", gives=InstanceOut)
    def post(self, request: Request, instance_id: UUID) -> Response:
        """Ask for it; the machine follows."""
        changed = actions.terminate(actor=self.actor, instance_id=instance_id, now=self.now)
        return Response(shown(self, [changed])[0])


class Logs(Endpoint):
    """`/instances/{id}/logs`."""

    needs = {"GET": "instances.view"}

    @operation(
        "read_logs",
        "Read the last lines that the present run wrote.",
        gives=LogsOut,
        query=[OpenApiParameter("tail", OpenApiTypes.INT, description="Lines; 200 if left out.")],
    )
    def get(self, request: Request, instance_id: UUID) -> Response:
        """Ask its node for them."""
        tail = request.query_params.get("tail", "200")
        if not tail.isdecimal() or not 1 <= int(tail) <= 5000:
            raise ValidationError({"tail": [_("A number of lines from 1 to 5000.")]})
        text = actions.logs(actor=self.actor, instance_id=instance_id, tail=int(tail))
        return Response({"text": text})


def shown(endpoint: Endpoint, rows: Collection[InstanceRow]) -> list[dict[str, Any]]:
    """Write instances for the actor of this request, with a fixed number of queries."""
    currency = endpoint.actor.organization.currency
    today = {
        price.sku: Money(price.per_hour, currency)
        for price in prices.list_prices(at=endpoint.now).filter(currency=currency)
    }
    mine = [
        row.id
        for row in rows
        if endpoint.actor.may("usage.view", team_id=row.team_id, owner_id=row.member_id)
    ]
    costs = usage.costs_of(subjects=mine, now=endpoint.now)
    return [
        dict(
            InstanceOut(
                _where_it_stands(row)
                | _what_it_is(row)
                | {
                    "price_per_hour": today.get(row.flavor.code),
                    "cost": costs[row.id].money if row.id in costs else None,
                }
            ).data
        )
        for row in rows
    ]


def _what_it_is(row: InstanceRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "organization": row.organization_id,
        "team": row.team_id,
        "team_name": row.team.name,
        "member": row.member_id,
        "member_name": str(row.member.user),
        "name": row.name,
        "flavor": row.flavor.code,
        "image": row.image.code,
        "command": row.command,
        "env_names": sorted(row.env),
        "priority": row.priority,
        "gpu_count": row.flavor.gpu_count,
        "milli_gpus": row.flavor.milli_gpus,
        "created_at": row.created_at,
    }


def _where_it_stands(row: InstanceRow) -> dict[str, Any]:
    waiting = row.request if row.state == State.QUEUED else None
    if waiting is not None and waiting.standing != Standing.PENDING:
        waiting = None
    return {
        "state": row.state,
        "state_words": row.get_state_display(),
        "since": row.state_since,
        "reason_code": waiting.reason_code if waiting else row.reason_code,
        "reason": words.words(waiting) if waiting else reasons.words(row),
        "wanted": row.wanted,
        "queue_position": queue.position(request=waiting) if waiting else None,
        "estimate": _estimate(waiting),
        "sooner": list(words.sooner(waiting)) if waiting else [],
        "run": row.run,
        "node_name": row.node.name if row.node else None,
        "progress": row.progress,
        "ports": row.ports,
        "started_at": row.started_at,
        "stop_at": row.stop_at,
    }


def _estimate(waiting: QueuedRequest | None) -> Mapping[str, Any] | None:
    if waiting is None or not waiting.estimate:
        return None
    return {
        "low_seconds": waiting.estimate["low_s"],
        "high_seconds": waiting.estimate["high_s"],
        "words": words.estimate(waiting.estimate),
        "basis": words.basis(waiting.estimate),
    }
