"""The pure planner: `plan(snapshot) -> Plan`. No clock, no database, no unseeded randomness."""

from scheduler.engine.cycle import plan
from scheduler.engine.plan import Code, Decision, Estimate, Placement, Plan
from scheduler.engine.snapshot import (
    WHOLE_GPU,
    Gpu,
    GpuUnits,
    Node,
    Policy,
    Request,
    Running,
    RunTimes,
    Snapshot,
)

__all__ = [
    "WHOLE_GPU",
    "Code",
    "Decision",
    "Estimate",
    "Gpu",
    "GpuUnits",
    "Node",
    "Placement",
    "Plan",
    "Policy",
    "Request",
    "RunTimes",
    "Running",
    "Snapshot",
    "plan",
]
