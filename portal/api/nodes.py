"""`nodes`, `gpus` and `join-tokens`: the machines, for operators."""

from typing import Any
from uuid import UUID

from django.db.models import Count, QuerySet
from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.endpoint import Endpoint
from portal.api.pages import page
from portal.api.schema import operation
from portal.errors import NotFound
from portal.fleet import nodes
from portal.fleet.models import Gpu as GpuRow
from portal.fleet.models import GpuState, Link
from portal.fleet.models import Node as NodeRow


class NodeOut(serializers.Serializer[Any]):
    """A machine with an agent on it."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    pool = serializers.CharField()
    labels = serializers.DictField()
    link = serializers.ChoiceField(Link.choices)
    link_since = serializers.DateTimeField()
    last_seen_at = serializers.DateTimeField(allow_null=True)
    clock_offset_ms = serializers.IntegerField(
        allow_null=True, help_text="The portal's clock minus the node's."
    )
    gpu_count = serializers.IntegerField()
    runtime = serializers.CharField()
    has_isolation = serializers.BooleanField()
    agent_version = serializers.CharField()
    driver_version = serializers.CharField()
    cuda_version = serializers.CharField()
    cpu_milli = serializers.IntegerField()
    memory_bytes = serializers.IntegerField()
    disk_bytes = serializers.IntegerField()
    cordoned_at = serializers.DateTimeField(allow_null=True)
    cordon_reason = serializers.CharField()
    joined_at = serializers.DateTimeField()
    retired_at = serializers.DateTimeField(allow_null=True)


class GpuOut(serializers.Serializer[Any]):
    """One GPU."""

    id = serializers.UUIDField()
    uuid = serializers.CharField(help_text="The driver's, “GPU-…”.")
    node = serializers.UUIDField(source="node_id")
    node_name = serializers.CharField(source="node.name")
    index = serializers.IntegerField(help_text="May change with every boot.")
    model = serializers.CharField()
    memory_bytes = serializers.IntegerField()
    pci_bus_id = serializers.CharField()
    state = serializers.ChoiceField(GpuState.choices)
    state_since = serializers.DateTimeField()
    state_detail = serializers.CharField()


class ReasonIn(serializers.Serializer[Any]):
    """Why."""

    reason = serializers.CharField(max_length=200)


class JoinTokenIn(serializers.Serializer[Any]):
    """Where the machine is to belong."""

    pool = serializers.CharField(max_length=40, default="default")


class JoinTokenOut(serializers.Serializer[Any]):
    """Lets one machine join once."""

    id = serializers.UUIDField()
    pool = serializers.CharField()
    expires_at = serializers.DateTimeField()
    secret = serializers.CharField(
        allow_null=True, help_text="Shown once: null when the request is repeated."
    )


class Nodes(Endpoint):
    """`/nodes`."""

    needs = {"GET": "operator"}

    @operation("list_nodes", "List the machines.", gives=NodeOut, pages=True)
    def get(self, request: Request) -> Response:
        """Answer them, retired ones too."""
        return page(self, _nodes(), NodeOut, ordering=["name", "id"])


class Node(Endpoint):
    """`/nodes/{id}`."""

    needs = {"GET": "operator"}

    @operation("get_node", "Show a machine.", gives=NodeOut)
    def get(self, request: Request, node_id: UUID) -> Response:
        """Answer one."""
        return _answer(node_id)


class Cordon(Endpoint):
    """`/nodes/{id}/cordon`."""

    needs = {"POST": "operator"}

    @operation("cordon_node", "Place nothing new on a machine.", takes=ReasonIn, gives=NodeOut)
    def post(self, request: Request, node_id: UUID) -> Response:
        """Cordon it; what runs there goes on."""
        asked = ReasonIn(data=request.data)
        asked.is_valid(raise_exception=True)
        nodes.cordon(
            actor=self.actor.user,
            node_id=node_id,
            reason=asked.validated_data["reason"],
            now=self.now,
        )
        return _answer(node_id)


class Uncordon(Endpoint):
    """`/nodes/{id}/uncordon`."""

    needs = {"POST": "operator"}

    @operation("uncordon_node", "Place things on a machine again.", gives=NodeOut)
    def post(self, request: Request, node_id: UUID) -> Response:
        """Uncordon it."""
        nodes.uncordon(actor=self.actor.user, node_id=node_id, now=self.now)
        return _answer(node_id)


class Retire(Endpoint):
    """`/nodes/{id}/retire`."""

    needs = {"POST": "operator"}

    @operation("retire_node", "Send a machine away for good.", gives=NodeOut)
    def post(self, request: Request, node_id: UUID) -> Response:
        """Retire it."""
        nodes.retire(actor=self.actor.user, node_id=node_id, now=self.now)
        return _answer(node_id)


class Gpus(Endpoint):
    """`/gpus`."""

    needs = {"GET": "operator"}

    @operation("list_gpus", "List the GPUs of all machines in service.", gives=GpuOut, pages=True)
    def get(self, request: Request) -> Response:
        """Answer them by machine and place."""
        rows = GpuRow.objects.filter(node__retired_at=None).select_related("node")
        return page(self, rows, GpuOut, ordering=["node__name", "node_id", "index"])


class JoinTokens(Endpoint):
    """`/join-tokens`."""

    needs = {"POST": "operator"}
    shown_once = ("secret",)

    @operation(
        "issue_join_token",
        "Make a token that lets one machine join once, within the hour.",
        takes=JoinTokenIn,
        gives=JoinTokenOut,
        status=201,
    )
    def post(self, request: Request) -> Response:
        """Make one."""
        asked = JoinTokenIn(data=request.data)
        asked.is_valid(raise_exception=True)
        token, secret = nodes.issue_join_token(pool=asked.validated_data["pool"], now=self.now)
        shown = {
            "id": token.id,
            "pool": token.pool,
            "expires_at": token.expires_at,
            "secret": secret,
        }
        return Response(JoinTokenOut(shown).data, status=201)


def _nodes() -> QuerySet[NodeRow]:
    return NodeRow.objects.annotate(gpu_count=Count("gpus"))


def _answer(node_id: UUID) -> Response:
    node = _nodes().filter(id=node_id).first()
    if node is None:
        raise NotFound("node_not_found", _("There is no such node."))
    return Response(NodeOut(node).data)
