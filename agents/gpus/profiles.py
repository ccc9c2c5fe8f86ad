"""The GPU models that can be simulated, with the figures of the real boards.

Memory, limits, idle figures and which values a board does not report come from the makers' data and
from captures of real machines; temperatures are those of a well-cooled server or workstation.
"""

import re
from dataclasses import dataclass, replace

from agents.gpus import UnableToOpenGpusError

MOST_GPUS = 64


@dataclass(frozen=True)
class Model:
    """One board: memory in MiB, power in W, clocks in MHz, temperatures in °C, fan in percent.

    `fan` None: the board has no fan of its own. `slices` are (profile, MiB) of MIG instances; a
    sliced board has no utilisation.
    """

    name: str
    memory: int
    idle_watts: float
    limit_watts: float
    load_watts: float
    idle_clock: int
    top_clock: int
    idle_celsius: float
    load_celsius: float
    slowdown_celsius: float
    fan: int | None = None
    idle_memory: int = 0
    driver: str = "590.48.01"
    slices: tuple[tuple[str, int], ...] = ()


H100 = Model(
    name="NVIDIA H100 80GB HBM3",
    memory=81559,
    idle_watts=70,
    limit_watts=700,
    load_watts=632,
    idle_clock=345,
    top_clock=1980,
    idle_celsius=34,
    load_celsius=62,
    slowdown_celsius=87,
)

MODELS: dict[str, Model] = {
    "h100": H100,
    "h100mig": replace(
        H100,
        idle_memory=59,
        slices=(("3g.40gb", 40448), ("2g.20gb", 20096), ("1g.10gb", 9984), ("1g.10gb", 9984)),
    ),
    "h200": Model(
        name="NVIDIA H200",
        memory=143771,
        idle_watts=77,
        limit_watts=700,
        load_watts=627,
        idle_clock=345,
        top_clock=1980,
        idle_celsius=28,
        load_celsius=56,
        slowdown_celsius=87,
    ),
    "a100": Model(
        name="NVIDIA A100-SXM4-80GB",
        memory=81920,
        idle_watts=62,
        limit_watts=400,
        load_watts=372,
        idle_clock=210,
        top_clock=1410,
        idle_celsius=31,
        load_celsius=64,
        slowdown_celsius=89,
    ),
    "l40s": Model(
        name="NVIDIA L40S",
        memory=46068,
        idle_watts=35,
        limit_watts=350,
        load_watts=325,
        idle_clock=210,
        top_clock=2520,
        idle_celsius=32,
        load_celsius=71,
        slowdown_celsius=88,
    ),
    "rtx4090": Model(
        name="NVIDIA GeForce RTX 4090",
        memory=24564,
        idle_watts=21,
        limit_watts=450,
        load_watts=410,
        idle_clock=210,
        top_clock=2745,
        idle_celsius=35,
        load_celsius=73,
        slowdown_celsius=83,
        fan=30,
        idle_memory=1,
    ),
    "rtx2080s": Model(
        name="NVIDIA GeForce RTX 2080 SUPER",
        memory=8192,
        idle_watts=37,
        limit_watts=250,
        load_watts=238,
        idle_clock=765,
        top_clock=2055,
        idle_celsius=40,
        load_celsius=79,
        slowdown_celsius=89,
        fan=38,
        idle_memory=214,
        driver="595.71.05",
    ),
}

# A rack's odds and ends, for pages that show several models.
MIXED = ("h100", "h100", "a100", "a100", "l40s", "l40s", "rtx4090", "rtx4090")


def boards(profile: str) -> list[Model]:
    """List the boards of a profile: MODELxCOUNT as in `h100x8`, several with `+`, or `mixed`.

    Raises UnableToOpenGpusError, with the models there are, for anything else.
    """
    if profile == "mixed":
        return [MODELS[name] for name in MIXED]
    found: list[Model] = []
    for part in profile.split("+"):
        match = re.fullmatch(r"([a-z0-9]+?)x(\d{1,3})", part)
        if match is None or match[1] not in MODELS:
            raise UnableToOpenGpusError(
                f"There is no simulated profile {profile!r}: write MODELxCOUNT, with a model of "
                f"{', '.join(MODELS)}, or mixed."
            )
        found += [MODELS[match[1]]] * int(match[2])
    if not 1 <= len(found) <= MOST_GPUS:
        raise UnableToOpenGpusError(f"A simulated node has 1 to {MOST_GPUS} GPUs.")
    return found
