"""The pure planner: `plan(snapshot) -> Plan`. No clock, no database, no unseeded randomness."""
