"""GPUs that are not there, with figures that behave like those of GPUs that are.

Everything follows from the node's seed, the moments of sampling and how busy the instances are; no
clock and no chance. A new process starts with cool boards and an energy counter of zero, as after a
restart of a real driver.
"""

import hashlib
import math
import os
import secrets
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path

from agents.gpus import Activity
from agents.gpus.profiles import Model, boards
from agents.wire import GpuHealth, GpuInfo, Sample

MIB = 1024 * 1024
SEED_FILE = "simulated-gpus.seed"
CUDA_VERSION = "13.1"

POWER_LAG_SECONDS = 1.5
HEAT_LAG_SECONDS = 40.0
MEMORY_FILL_SECONDS = 20.0
# Above this many degrees below slowdown a board begins to give up clock.
WARM_BAND = 20.0

IDLE, POWER_CAP, THERMAL = 0x1, 0x4, 0x20

_NAMESPACE = uuid.UUID("6f9c1d7a-38f5-4a55-9d0a-8a6c6a2f3f10")


def noise(*parts: object) -> float:
    """Return a number in [0, 1) that is always the same for the same parts."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=7).digest()
    return int.from_bytes(digest) / 2**56


@dataclass
class Board:
    """One simulated board and where its figures stand; power in W, memory in bytes."""

    model: Model
    info: GpuInfo
    slices: tuple[GpuInfo, ...]
    mono_ms: int | None = None
    util: int = 0
    memory: float = 0.0
    watts: float = 0.0
    celsius: float = 0.0
    power_mw: int = 0
    # Twice the integral of power over time, in mW·ms: the trapezoids stay whole numbers.
    energy: int = 0

    def __post_init__(self) -> None:
        self.memory = self.model.idle_memory * MIB
        self.watts = self.model.idle_watts
        self.celsius = self._rest_celsius
        self.power_mw = round(self.watts * 1000)

    @property
    def units(self) -> tuple[GpuInfo, ...]:
        """What can be given to an instance: the slices of a sliced board, else the board."""
        return self.slices or (self.info,)

    def advance(self, mono_ms: int, activity: float | None) -> None:
        """Move on to a later moment, with this much asked of the board since the last one.

        `activity` None: nobody holds the board. A moment that is not later changes nothing.
        """
        elapsed_ms = 0 if self.mono_ms is None else mono_ms - self.mono_ms
        if self.mono_ms is not None and elapsed_ms <= 0:
            return
        self.mono_ms = mono_ms
        seconds = elapsed_ms / 1000
        wanted = min(1.0, max(0.0, activity or 0.0))
        self.util = self._utilisation(mono_ms // 1000, wanted)
        self._move_memory(seconds, wanted, is_held=activity is not None)

        before = self.power_mw
        model = self.model
        span = model.load_watts - model.idle_watts
        ripple = 0.98 + 0.04 * noise(self.info.uuid, "power", mono_ms)
        rest = model.idle_watts * (0.99 + 0.02 * noise(self.info.uuid, "rest", mono_ms))
        target = rest + span * (self.util / 100) ** 0.9 * ripple * self._clock_share()
        self.watts += (target - self.watts) * (1 - math.exp(-seconds / POWER_LAG_SECONDS))
        self.power_mw = round(min(self.watts, model.limit_watts) * 1000)
        self.energy += (before + self.power_mw) * elapsed_ms

        heat = (before + self.power_mw) / 2000 - model.idle_watts
        rise = model.load_celsius - model.idle_celsius + 5 * self._seat
        goal = self._rest_celsius + rise * heat / span
        self.celsius += (goal - self.celsius) * (1 - math.exp(-seconds / HEAT_LAG_SECONDS))

    def samples(self, at_ms: int, mono_ms: int, *, held: frozenset[str]) -> list[Sample]:
        """Read the figures, with None for what such a board does not report.

        `held` are the UUIDs in use: the slices whose memory is filled.
        """
        clock, throttle = self.clock()
        temperature = round(self.celsius)
        if self.slices:
            share = self.memory / (self.model.memory * MIB)
            return [
                Sample(
                    gpu=part.uuid,
                    at_ms=at_ms,
                    mono_ms=mono_ms,
                    mem_used=round(part.memory_bytes * (share if part.uuid in held else 0.001)),
                    mem_total=part.memory_bytes,
                    temp_c=temperature,
                    sm_mhz=clock,
                    throttle=throttle,
                )
                for part in self.slices
            ]
        return [
            Sample(
                gpu=self.info.uuid,
                at_ms=at_ms,
                mono_ms=mono_ms,
                util=self.util,
                mem_used=round(self.memory),
                mem_total=self.info.memory_bytes,
                power_mw=self.power_mw,
                temp_c=temperature,
                sm_mhz=clock,
                mem_util=self._memory_traffic(),
                fan=self._fan(),
                throttle=throttle,
                energy_mj=self.energy // 2000,
            )
        ]

    def clock(self) -> tuple[int, int]:
        """Return the clock in MHz and the bits that say what holds it down."""
        model = self.model
        if self.util == 0:
            return model.idle_clock, IDLE
        bits = 0
        if self.celsius > model.slowdown_celsius - WARM_BAND / 2:
            bits |= THERMAL
        share = self._clock_share()
        if self.power_mw >= model.limit_watts * 970:
            bits |= POWER_CAP
            share *= 0.95
        steps = round(model.top_clock * share / 15)  # clocks move in steps of 15 MHz
        return max(model.idle_clock, min(model.top_clock, steps * 15)), bits

    @property
    def _seat(self) -> float:
        return noise(self.info.uuid, "seat")  # the boards at the back of a chassis run hotter

    @property
    def _rest_celsius(self) -> float:
        return self.model.idle_celsius + 2 * self._seat

    def _clock_share(self) -> float:
        excess = self.celsius - (self.model.slowdown_celsius - WARM_BAND)
        return 1.0 - 0.4 * min(1.0, max(0.0, excess / WARM_BAND))

    def _utilisation(self, second: int, wanted: float) -> int:
        if wanted == 0.0:
            return 0
        jitter = 0.94 + 0.06 * noise(self.info.uuid, "util", second)
        # Once in a while the program waits for its data, for a second or two.
        period = 23 + int(40 * noise(self.info.uuid, "period"))
        turn, position = divmod(second, period)
        dip = 1 + int(2 * noise(self.info.uuid, "dip", turn))
        if position < dip:
            jitter *= 0.35 + 0.4 * noise(self.info.uuid, "depth", second)
        return max(1, round(100 * wanted * jitter))

    def _move_memory(self, seconds: float, wanted: float, *, is_held: bool) -> None:
        total = self.model.memory * MIB
        floor = self.model.idle_memory * MIB
        if not is_held:
            self.memory = floor  # the program has ended, and its memory with it
        elif wanted > 0:
            working_set = total * (0.45 + 0.5 * noise(self.info.uuid, "working set"))
            step = total * seconds / MEMORY_FILL_SECONDS
            self.memory = max(floor, min(working_set, self.memory + step))

    def _memory_traffic(self) -> int:
        return round(self.util * (0.15 + 0.4 * noise(self.info.uuid, "traffic")))

    def _fan(self) -> int | None:
        if self.model.fan is None:
            return None
        return min(100, self.model.fan + max(0, round((self.celsius - 50) * 1.6)))


class SimulatedSource:
    """The boards of a profile; a `GpuSource`. They are the same ones after each restart."""

    def __init__(self, profile: str, *, state_dir: Path, activity: Activity) -> None:
        models = boards(profile)
        seed = _seed(state_dir)
        self._activity = activity
        self._lock = threading.Lock()
        self._driver = models[0].driver
        self._boards = [_board(seed, index, model) for index, model in enumerate(models)]

    def inventory(self) -> list[GpuInfo]:
        """List the boards, sliced ones as their slices."""
        return [unit for board in self._boards for unit in board.units]

    def sample(self, at_ms: int, mono_ms: int) -> list[Sample]:
        """Move every board on to this moment and read it."""
        busy = self._activity()
        held = frozenset(busy)
        samples = []
        with self._lock:
            for board in self._boards:
                asked = [busy[unit.uuid] for unit in board.units if unit.uuid in busy]
                load = sum(asked) / len(board.units) if asked else None
                board.advance(mono_ms, load)
                samples += board.samples(at_ms, mono_ms, held=held)
        return samples

    def health(self) -> list[GpuHealth]:
        """Say that every board is well: a simulated one does not fail."""
        return [GpuHealth(uuid=info.uuid, state="ok") for info in self.inventory()]

    def reason(self) -> str:
        """Say nothing: the boards are always there."""
        return ""

    def driver(self) -> tuple[str | None, str | None]:
        """Return the versions that the real boards had when their figures were taken."""
        return self._driver, CUDA_VERSION

    def close(self) -> None:
        """Do nothing: no driver is held."""


def _board(seed: str, index: int, model: Model) -> Board:
    # The model is part of the identity: another profile in the same place is another machine.
    name = f"{seed}/{index}/{model.name}"
    info = GpuInfo(
        uuid=f"GPU-{uuid.uuid5(_NAMESPACE, name)}",
        index=index,
        model=model.name,
        memory_bytes=model.memory * MIB,
        pci_bus_id=f"00000000:{0x1A + index:02X}:00.0",
        mig=bool(model.slices),
    )
    slices = tuple(
        GpuInfo(
            uuid=f"MIG-{uuid.uuid5(_NAMESPACE, f'{name}/{number}')}",
            index=index,
            model=f"{model.name} MIG {profile}",
            memory_bytes=memory * MIB,
            pci_bus_id=info.pci_bus_id,
            mig=True,
        )
        for number, (profile, memory) in enumerate(model.slices)
    )
    return Board(model, info, slices)


def _seed(state_dir: Path) -> str:
    """Read this node's seed, or draw it the first time."""
    path = state_dir / SEED_FILE
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        state_dir.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(secrets.token_hex(16) + "\n")
    try:
        os.link(fresh, path)  # unlike a rename, this lets an agent that was quicker keep its seed
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
    return path.read_text().strip()
