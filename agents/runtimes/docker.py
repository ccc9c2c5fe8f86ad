"""Instances as containers, over the Docker Engine API that Docker and Podman both speak.

Everything the agent must remember of a container is in its labels, so a new agent finds it again.
"""

import contextlib
import datetime as dt
import os
import re
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import docker
import docker.errors
import docker.models.containers
import docker.types
import msgspec
import requests

from agents import wire
from agents.runtimes import (
    Observed,
    Outcome,
    Progress,
    RuntimeSilent,
    UnableToStart,
    environment,
    explain_exit,
    require_safe_id,
    tiny_image,
)
from agents.runtimes.pulling import Pull

LABEL_NODE = "corral.node"
LABEL_INSTANCE = "corral.instance"
LABEL_RUN = "corral.run"
LABEL_SPEC = "corral.spec"

CALL_SECONDS = 60
# An init that can't run its command ends within this time.
COMMAND_SECONDS = 0.3
# As Podman's catatonit and Docker's tini say it.
INIT_COMPLAINT = re.compile(r"failed to exec pid1|exec .* failed:")
PIDS_LIMIT = 4096
PID_MAX = Path("/proc/sys/kernel/pid_max")
# Enough to run a package manager as root inside, and nothing of the host.
CAPABILITIES = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETGID",
    "SETUID",
    "SYS_CHROOT",
]

SILENCES = (docker.errors.DockerException, requests.exceptions.RequestException, OSError)


class DockerRuntime:
    """Runs instances as hardened containers on the engine behind a socket."""

    isolation = True

    def __init__(
        self,
        name: Literal["docker", "podman"],
        *,
        node_id: str,
        has_real_gpus: bool,
        address: str | None = None,
    ) -> None:
        self.name: wire.RuntimeName = name
        self._node_id = node_id
        self._has_real_gpus = has_real_gpus
        problems = []
        for candidate in [address] if address else _addresses(name):
            try:
                self._client = _connect(candidate)
            except SILENCES as error:
                problems.append(f"{candidate}: {error}")
            else:
                return
        raise RuntimeSilent(f"{name} does not answer ({'; '.join(problems) or 'no socket'}).")

    def start(
        self, spec: wire.InstanceSpec, *, progress: Progress, cancelled: threading.Event
    ) -> None:
        """Pull the image if need be, start a container and check its GPUs from inside."""
        require_safe_id(spec.id)
        if self._find(spec.id, spec.run) is not None:
            return
        self._have_image(spec.image, progress, cancelled)
        progress(100)
        if cancelled.is_set():
            raise UnableToStart("cancelled", "Stopped before it started.")
        try:
            container = self._client.containers.create(**self._options(spec))
        except docker.errors.ImageNotFound as error:
            raise UnableToStart("image_missing", f'There is no image "{spec.image}".') from error
        except docker.errors.APIError as error:
            raise UnableToStart("create_failed", f"The engine refused: {_words(error)}") from error
        try:
            container.start()
            _verify_command(container)
            if self._has_real_gpus:
                self._verify_gpus(container, spec)
        except docker.errors.APIError as error:
            self._discard(container)
            raise UnableToStart("start_failed", f"It did not start: {_words(error)}") from error
        except UnableToStart:
            self._discard(container)
            raise

    def stop(self, instance: str, run: int, *, grace_s: float) -> None:
        """Let the engine end a container, by force after the grace."""
        container = self._find(instance, run)
        if container is None or container.status not in ("running", "paused", "restarting"):
            return
        try:
            if grace_s > 0:
                container.stop(timeout=int(grace_s))
            else:
                container.kill()
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as error:
            if error.status_code != requests.codes.conflict:
                raise

    def remove(self, instance: str, run: int) -> None:
        """Delete a container and its volumes."""
        container = self._find(instance, run)
        if container is not None:
            self._discard(container)

    def runs(self) -> list[Observed]:
        """List all containers of this node."""
        try:
            containers = self._client.containers.list(
                all=True, filters={"label": f"{LABEL_NODE}={self._node_id}"}, ignore_removed=True
            )
        except SILENCES as error:
            raise RuntimeSilent(f"The engine does not answer: {error}") from error
        return [one for one in map(_observed, containers) if one is not None]

    def logs(self, instance: str, run: int, *, tail: int, max_bytes: int) -> str:
        """Return the last lines of a container's output."""
        container = self._find(instance, run)
        if container is None:
            raise KeyError(instance)
        data: bytes = container.logs(tail=tail)
        return data[-max_bytes:].decode("utf-8", "replace")

    def close(self) -> None:
        """Close the connections to the engine."""
        self._client.close()

    def _find(self, instance: str, run: int) -> docker.models.containers.Container | None:
        try:
            container = self._client.containers.get(_name(instance, run))
        except docker.errors.NotFound:
            return None
        return container if container.labels.get(LABEL_NODE) == self._node_id else None

    def _have_image(self, image: str, progress: Progress, cancelled: threading.Event) -> None:
        with contextlib.suppress(docker.errors.ImageNotFound):
            self._client.images.get(image)
            return
        progress(0)
        if image == tiny_image.IMAGE:
            tiny_image.ensure(self._client)
            return
        pull = Pull(image)
        try:
            for line in self._client.api.pull(image, stream=True, decode=True):
                if cancelled.is_set():
                    raise UnableToStart("cancelled", "Stopped before it started.")
                percent = pull.take(line)
                if percent is not None:
                    progress(percent)
            self._client.images.get(image)
        except (docker.errors.APIError, requests.exceptions.RequestException) as error:
            raise pull.failed(_words(error)) from error

    def _options(self, spec: wire.InstanceSpec) -> dict[str, Any]:
        options: dict[str, Any] = {
            "image": spec.image,
            "command": spec.command,
            "name": _name(spec.id, spec.run),
            "hostname": spec.id[:63],
            "environment": environment(spec, has_real_gpus=self._has_real_gpus),
            "labels": {
                LABEL_NODE: self._node_id,
                LABEL_INSTANCE: spec.id,
                LABEL_RUN: str(spec.run),
                LABEL_SPEC: msgspec.json.encode(spec).decode(),
            },
            "detach": True,
            "init": True,
            "restart_policy": {"Name": "no"},
            "security_opt": ["no-new-privileges"],
            "cap_drop": ["ALL"],
            "cap_add": CAPABILITIES,
            "pids_limit": PIDS_LIMIT,
            "nano_cpus": spec.cpu_milli * 1_000_000,
            "mem_limit": spec.memory_bytes,
            "memswap_limit": spec.memory_bytes,
            # PyTorch's workers share batches here; the default of 64 MB breaks them.
            "shm_size": spec.memory_bytes // 2,
            "ulimits": _ulimits(),
            "ports": {f"{port}/tcp": ("127.0.0.1", None) for port in spec.ports},
            "log_config": docker.types.LogConfig(type="json-file", config={"max-size": "8m"}),
        }
        if self._has_real_gpus and spec.gpus:
            options["device_requests"] = [self._device_request(spec)]
        return options

    def _device_request(self, spec: wire.InstanceSpec) -> docker.types.DeviceRequest:
        uuids = [share.uuid for share in spec.gpus]
        if self.name == "podman" or self._client.info().get("CDISpecDirs"):
            return docker.types.DeviceRequest(
                driver="cdi", device_ids=[f"nvidia.com/gpu={uuid}" for uuid in uuids]
            )
        return docker.types.DeviceRequest(
            driver="nvidia", device_ids=uuids, capabilities=[["gpu", "utility", "compute"]]
        )

    def _verify_gpus(
        self, container: docker.models.containers.Container, spec: wire.InstanceSpec
    ) -> None:
        """Refuse a container that sees other GPUs than its own; engines have forgotten them."""
        wanted = {share.uuid for share in spec.gpus}
        if not wanted:
            return
        code, output = container.exec_run(["nvidia-smi", "-L"])
        text = output.decode("utf-8", "replace") if isinstance(output, bytes) else ""
        seen = {line.rpartition("UUID: ")[2].rstrip(") ") for line in text.splitlines()}
        # A MIG slice is listed below its parent, which then is visible too.
        visible = {uuid for uuid in seen if uuid.startswith(("GPU-", "MIG-"))}
        slices = {uuid for uuid in visible if uuid.startswith("MIG-")}
        if code != 0 or wanted != (slices or visible):
            raise UnableToStart(
                "gpu_not_visible",
                f"Inside the instance {len(slices or visible)} GPUs are visible, "
                f"not exactly the {len(wanted)} assigned.",
            )

    def _discard(self, container: docker.models.containers.Container) -> None:
        with contextlib.suppress(docker.errors.NotFound):
            container.remove(force=True, v=True)


def _connect(address: str) -> docker.DockerClient:
    if address.startswith("unix://"):
        # The library leaks a socket for each attempt that fails, so try one of our own first.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(CALL_SECONDS)
            probe.connect(address.removeprefix("unix://"))
    return docker.DockerClient(base_url=address, timeout=CALL_SECONDS)


def _verify_command(container: docker.models.containers.Container) -> None:
    """Refuse a container whose init could not run the command: engines call that a start."""
    deadline = time.monotonic() + COMMAND_SECONDS
    while time.monotonic() < deadline:
        container.reload()
        state = container.attrs["State"]
        if state.get("Status") == "exited":
            words = container.logs(tail=1).decode("utf-8", "replace").strip()
            if state.get("ExitCode") and INIT_COMPLAINT.search(words):
                raise UnableToStart("command_failed", f"The command can't be run: {words[:300]}")
            return
        time.sleep(0.05)


def _observed(container: docker.models.containers.Container) -> Observed | None:
    try:
        spec = msgspec.json.decode(container.labels[LABEL_SPEC], type=wire.InstanceSpec)
    except (KeyError, msgspec.DecodeError):
        return None
    state: dict[str, Any] = container.attrs["State"]
    status = str(state.get("Status"))
    if status in ("created", "initialized", "configured"):
        return None
    is_live = status in ("running", "paused", "restarting", "stopping", "removing")
    return Observed(
        spec=spec,
        is_live=is_live,
        container_id=container.id,
        started_at_ms=_milliseconds(state.get("StartedAt")),
        ended_at_ms=None if is_live else _milliseconds(state.get("FinishedAt")),
        outcome=None if is_live else _outcome(spec, state),
        ports=_ports(container.attrs),
        pid=state.get("Pid") or None,
    )


def _outcome(spec: wire.InstanceSpec, state: dict[str, Any]) -> Outcome:
    return explain_exit(
        state.get("ExitCode"),
        memory_bytes=spec.memory_bytes,
        was_oom=bool(state.get("OOMKilled")),
    )


def _ports(attributes: dict[str, Any]) -> dict[int, int]:
    published = (attributes.get("NetworkSettings") or {}).get("Ports") or {}
    return {
        int(inner.partition("/")[0]): int(outer[0]["HostPort"])
        for inner, outer in published.items()
        if outer
    }


def _milliseconds(text: str | None) -> int | None:
    """Read an engine's time, which has up to nine decimals; its year 1 means never."""
    if not text or text.startswith("0001-"):
        return None
    with contextlib.suppress(ValueError):
        return int(dt.datetime.fromisoformat(text).timestamp() * 1000)
    return None


def _ulimits() -> list[docker.types.Ulimit]:
    """Ask for no more than the agent has: without the right to raise limits an engine fails."""
    highest = {"nofile": (resource.RLIMIT_NOFILE, 1_048_576), "nproc": (resource.RLIMIT_NPROC, 0)}
    with contextlib.suppress(OSError, ValueError):
        highest["nproc"] = (resource.RLIMIT_NPROC, int(PID_MAX.read_text()))
    limits = []
    for name, (kind, most) in highest.items():
        own = resource.getrlimit(kind)[1]
        limit = most if own == resource.RLIM_INFINITY else min(own, most)
        if limit > 0:
            limits.append(docker.types.Ulimit(name=name, soft=limit, hard=limit))
    return limits


def _addresses(name: Literal["docker", "podman"]) -> Iterator[str]:
    variable = "DOCKER_HOST" if name == "docker" else "CONTAINER_HOST"
    if os.environ.get(variable):
        yield os.environ[variable]
        return
    runtime_dir = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    paths = {
        "docker": ["/var/run/docker.sock", f"{runtime_dir}/docker.sock"],
        "podman": ["/run/podman/podman.sock", f"{runtime_dir}/podman/podman.sock"],
    }
    for path in paths[name]:
        if Path(path).exists():
            yield f"unix://{path}"


def _name(instance: str, run: int) -> str:
    return f"corral-{instance}-{run}"


def _words(error: Exception) -> str:
    explanation = getattr(error, "explanation", None)
    return str(explanation or error).strip()[:400]
