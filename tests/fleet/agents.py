"""Machines as tests need them: a key pair, a join, a Hello."""

import base64
import uuid
from datetime import datetime
from typing import Any
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agents import wire
from portal.fleet import nodes


class Machine:
    """A machine with a key, before and after it joined."""

    def __init__(self, hostname: str = "gpu-1") -> None:
        self.key = Ed25519PrivateKey.generate()
        self.hostname = hostname
        self.node_id: UUID | None = None
        self.boot_id = f"boot-{uuid.uuid4()}"
        self.run_id = f"run-{uuid.uuid4()}"

    @property
    def public_key(self) -> str:
        return base64.b64encode(self.key.public_key().public_bytes_raw()).decode()

    def request(self, token: str) -> wire.JoinRequest:
        return wire.JoinRequest(
            token=token, public_key=self.public_key, hostname=self.hostname, agent_version="1.0"
        )

    def join(self, now: datetime) -> UUID:
        _, secret = nodes.issue_join_token(now=now)
        self.node_id = UUID(nodes.join(request=self.request(secret), now=now).node_id)
        return self.node_id

    def hello(self, now: datetime, **fields: Any) -> wire.Hello:
        values: dict[str, Any] = {
            "proto_min": 1,
            "proto_max": 1,
            "agent_version": "1.0",
            "node_id": str(self.node_id),
            "boot_id": self.boot_id,
            "agent_run_id": self.run_id,
            "generation": 1,
            "wall_time": round(now.timestamp() * 1000),
            "runtime": "process",
            "isolation": False,
            "inventory": inventory(gpu("GPU-" + str(self.node_id))),
        }
        return wire.Hello(**(values | fields))

    def open(self, now: datetime, **fields: Any) -> wire.Welcome:
        assert self.node_id is not None
        return nodes.open_session(node_id=self.node_id, hello=self.hello(now, **fields), now=now)


def gpu(uuid: str, index: int = 0, model: str = "NVIDIA H100 80GB HBM3") -> wire.GpuInfo:
    return wire.GpuInfo(uuid=uuid, index=index, model=model, memory_bytes=81559 * 1024**2)


def inventory(*gpus: wire.GpuInfo) -> wire.Inventory:
    return wire.Inventory(
        hostname="gpu-1",
        cpu_milli=64_000,
        memory_bytes=512 * 1024**3,
        disk_bytes=1024**4,
        driver_version="590.48.01",
        gpus=list(gpus),
    )
