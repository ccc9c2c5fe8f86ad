"""The words that a node and the portal say to each other, and how they are written down.

Frames are JSON text, each an object with a "type". Decided here: names, fields, versions and close
codes. Not here: who says what when; see docs/agent.md. The portal imports nothing else of `agents`.

Times named `*_at_ms`, `since`, `wall_time` and `server_time_ms` are Unix milliseconds; `mono_ms` is
the sender's monotonic clock in milliseconds. A value that is not known is null, never 0.
"""

import base64
from typing import Literal, Protocol

import msgspec

VERSION = 1
MIN_VERSION = 1

JOIN_PATH = "/agent/join"
SOCKET_PATH = "/agent/ws"

HEADER_NODE = "X-Corral-Node"
HEADER_GENERATION = "X-Corral-Generation"
HEADER_TIME = "X-Corral-Time"
HEADER_SIGNATURE = "X-Corral-Signature"

CLOSE_BAD_CREDENTIAL = 4401
CLOSE_NO_COMMON_VERSION = 4406
CLOSE_TAKEN_OVER = 4409
CLOSE_IDENTITY_CONFLICT = 4410

MAX_FRAME_BYTES = 256 * 1024

RuntimeName = Literal["docker", "podman", "process"]
Phase = Literal["pulling", "starting", "running", "stopping", "exited", "failed"]
Wanted = Literal["run", "stop"]
HealthState = Literal["ok", "lost", "not_answering", "busy"]

# The phases after which a (id, run) never does anything again.
FINISHED_PHASES: frozenset[str] = frozenset({"exited", "failed"})


class WireError(ValueError):
    """A frame that is not one of our messages: not JSON, no type, or a field of the wrong kind."""


class GpuInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU or MIG slice as the driver names it; `uuid` is its identity, `index` a label."""

    uuid: str
    index: int
    model: str
    memory_bytes: int
    pci_bus_id: str | None = None
    mig: bool = False


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine has to give."""

    hostname: str
    cpu_milli: int
    memory_bytes: int
    disk_bytes: int
    driver_version: str | None = None
    cuda_version: str | None = None
    gpus: list[GpuInfo] = []


class InstanceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What one start of one instance is observed to do; `run` counts the starts of that instance.

    `started_at_ms` is the node's evidence of the start and never changes within a run. `reason` is
    a sentence for people, `reason_code` a word for programs, `progress` a percentage of the pull.
    """

    id: str
    run: int
    phase: Phase
    since: int
    container_id: str | None = None
    started_at_ms: int | None = None
    exit_code: int | None = None
    reason: str | None = None
    reason_code: str | None = None
    gpus: list[str] = []
    progress: int | None = None
    ports: dict[int, int] = {}


class GpuHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How one GPU answers; `detail` is a sentence."""

    uuid: str
    state: HealthState
    detail: str | None = None


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of one GPU; percentages are integers 0..100, memory is in bytes."""

    gpu: str
    at_ms: int
    mono_ms: int
    util: int | None = None
    mem_used: int | None = None
    mem_total: int | None = None
    power_mw: int | None = None
    temp_c: int | None = None
    sm_mhz: int | None = None
    mem_util: int | None = None
    fan: int | None = None
    throttle: int | None = None
    energy_mj: int | None = None


class GpuShare(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a GPU: `units` are thousandths of it."""

    uuid: str
    units: int = 1000
    memory_bytes: int | None = None


class InstanceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What one start of one instance should be."""

    id: str
    run: int
    name: str
    image: str
    command: list[str] | None = None
    env: dict[str, str] = {}
    gpus: list[GpuShare] = []
    cpu_milli: int
    memory_bytes: int
    disk_bytes: int
    ports: list[int] = []
    wanted: Wanted = "run"
    stop_grace_s: int = 10
    stop_on_disconnect_after_s: int | None = None


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """Node: who I am, what I have, what runs here. The first frame of a session.

    `looked_at_ms` as in `Report`.
    """

    proto_min: int
    proto_max: int
    agent_version: str
    node_id: str
    boot_id: str
    agent_run_id: str
    generation: int
    wall_time: int
    runtime: RuntimeName
    isolation: bool
    inventory: Inventory
    looked_at_ms: int | None = None
    instances: list[InstanceStatus] = []


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat"):
    """Node: the agent's loop lives, whatever GPUs and containers do."""

    seq: int
    wall_time: int
    mono_ms: int


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """Node: the whole observed state.

    `looked_at_ms` is when the runtime was last asked what runs, in Unix milliseconds: until then
    the statuses prove that something ran, whenever the frame is sent. None proves nothing.
    """

    seq: int
    wall_time: int
    mono_ms: int
    observed_generation: int
    looked_at_ms: int | None = None
    instances: list[InstanceStatus] = []
    gpu_health: list[GpuHealth] = []


class Samples(msgspec.Struct, frozen=True, kw_only=True, tag="samples"):
    """Node: readings of one moment.

    `seq` counts the batches of this agent run from 1; `dropped_total` those lost on the node.
    `replay` marks a batch of the backlog, sent behind live data after a reconnect.
    """

    agent_run_id: str
    seq: int
    samples: list[Sample] = []
    dropped_total: int = 0
    replay: bool = False


class CommandResult(msgspec.Struct, frozen=True, kw_only=True, tag="command_result"):
    """Node: the answer to one Command."""

    id: str
    ok: bool
    data: str | None = None
    error: str | None = None


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    """Portal: the session is accepted, and these are its intervals.

    `ack_seq` is the highest sample batch of this agent run that is stored already, 0 if none.
    """

    proto: int
    session_epoch: int
    lease_s: float = 60.0
    server_time_ms: int
    heartbeat_s: float = 5.0
    report_s: float = 5.0
    sample_s: float = 1.0
    desired_generation: int = 0
    ack_seq: int = 0
    max_frame_bytes: int = MAX_FRAME_BYTES


class Desired(msgspec.Struct, frozen=True, kw_only=True, tag="desired"):
    """Portal: everything that should be on this node.

    Absence means something only if `complete` is true and `count` equals the number of instances.
    """

    generation: int
    complete: bool
    count: int
    instances: list[InstanceSpec] = []


class Ack(msgspec.Struct, frozen=True, kw_only=True, tag="ack"):
    """Portal: every sample batch of this agent run up to and including `seq` is stored."""

    seq: int


class Echo(msgspec.Struct, frozen=True, kw_only=True, tag="echo"):
    """Portal: the heartbeat `seq` arrived."""

    seq: int
    server_time_ms: int


class Command(msgspec.Struct, frozen=True, kw_only=True, tag="command"):
    """Portal: do one transient thing. For "logs", `args` holds instance, run and tail (lines)."""

    id: str
    kind: str
    deadline_s: float = 10.0
    args: dict[str, str | int] = {}


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """A frame of a type that this version does not know: to be counted, not to be feared."""

    type: str


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of POST JOIN_PATH: `public_key` is the raw Ed25519 key in base64."""

    token: str
    public_key: str
    hostname: str
    agent_version: str


class JoinReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a JoinRequest: the identity that this key now has."""

    node_id: str
    generation: int


FromNode = Hello | Heartbeat | Report | Samples | CommandResult
FromPortal = Welcome | Desired | Ack | Echo | Command
Message = FromNode | FromPortal

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class _Tagged(msgspec.Struct):
    type: str


_tag_decoder = msgspec.json.Decoder(_Tagged)
_KNOWN_TYPES = frozenset(
    str(kind.__struct_config__.tag)
    for kind in (
        Hello,
        Heartbeat,
        Report,
        Samples,
        CommandResult,
        Welcome,
        Desired,
        Ack,
        Echo,
        Command,
    )
)


def encode(message: Message) -> bytes:
    """Write a message as one JSON text frame."""
    return _encoder.encode(message)


def decode(data: bytes | str) -> Message | Unknown:
    """Read one frame; unknown fields are ignored, an unknown type gives `Unknown`.

    Raises `WireError` for everything that is not a message.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        kind = _type_of(data)
        if kind is not None and kind not in _KNOWN_TYPES:
            return Unknown(type=kind)
        raise WireError(str(error)) from error


def _type_of(data: bytes | str) -> str | None:
    try:
        return _tag_decoder.decode(data).type
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def common_version(lowest: int, highest: int) -> int | None:
    """Name the newest protocol version that both sides speak, None if there is none."""
    version = min(highest, VERSION)
    return version if version >= max(lowest, MIN_VERSION) else None


def signed_text(*, node_id: str, generation: int, time_ms: int) -> bytes:
    """Return the bytes that a node signs to open a socket, and that the portal verifies."""
    return f"{node_id}|{generation}|{time_ms}".encode()


class Signer(Protocol):
    """Something that signs, such as an Ed25519 private key of `cryptography`."""

    def sign(self, data: bytes, /) -> bytes:
        """Return the signature of `data`."""


def sign_request(key: Signer, *, node_id: str, generation: int, time_ms: int) -> dict[str, str]:
    """Return the HTTP headers with which a node opens its socket at `time_ms`."""
    signature = key.sign(signed_text(node_id=node_id, generation=generation, time_ms=time_ms))
    return {
        HEADER_NODE: node_id,
        HEADER_GENERATION: str(generation),
        HEADER_TIME: str(time_ms),
        HEADER_SIGNATURE: base64.b64encode(signature).decode(),
    }
