"""What each command does: a few calls, then what to show. Returns data for --json and text."""

import getpass
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from uuid import UUID

from portal.cli import config, tables
from portal.cli.client import Client
from portal.cli.language import _

_SETTLED = frozenset({"RUNNING", "STOPPED", "FAILED", "LOST", "TERMINATED"})
_EVERY_S = 1.0


class Misused(Exception):
    """What was typed can't be done as it stands."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command found: for programs and for people. `is_ok` False: exit code 1."""

    data: Any
    text: str
    is_ok: bool = True


Command = Callable[[Client, Namespace], Answer]


def login(typed: Namespace) -> Answer:
    """Ask for address and token, try them, and save them."""
    saved = config.load()
    url = typed.url or saved.url or input(_("Address of the portal: ")).strip()
    token = typed.token or _ask_for_token()
    chosen = config.Config(url=url.rstrip("/"), token=token)
    organization = Client(chosen).get("organizations")["results"][0]
    where = config.save(chosen)
    return Answer(
        {"url": chosen.url, "organization": organization, "file": str(where)},
        _("Signed in to %(organization)s. Saved in %(file)s.")
        % {"organization": organization["name"], "file": where},
    )


def launch(client: Client, typed: Namespace) -> Answer:
    """Launch an instance; a repeat with the same key makes no second one."""
    body = {
        "team": typed.team or _own_team(client),
        "name": typed.name,
        "flavor": typed.flavor,
        "image": typed.image,
        "command": typed.command,
        "env": _variables(typed.env),
        "priority": typed.priority,
        "stop_at": _stop_at(typed.stop_after),
    }
    made = client.post("instances", body, key=typed.key)
    if typed.wait:
        made = _wait(client, made)
    is_ok = not typed.wait or made["state"] == "RUNNING"
    return Answer(made, f"{made['name']}  {made['id']}\n{tables.standing(made)}", is_ok)


def ls(client: Client, typed: Namespace) -> Answer:
    """List instances; those that ended for good only with --all."""
    query = {"state": [state.upper() for state in typed.state]} if typed.state else {}
    rows = [
        row
        for row in client.all("instances", **query)
        if typed.all or typed.state or row["state"] != "TERMINATED"
    ]
    if not rows:
        return Answer(rows, _("No instances."))
    header = (_("NAME"), _("STATE"), _("FLAVOR"), _("TEAM"), _("PER HOUR"), _("COST"), _("SINCE"))
    lines = [
        (
            row["name"],
            _state(row),
            row["flavor"],
            row["team_name"],
            tables.money(row["price_per_hour"]),
            tables.cost(row["cost"]),
            tables.moment(row["since"]),
        )
        for row in rows
    ]
    return Answer(rows, tables.table(header, lines))


def show(client: Client, typed: Namespace) -> Answer:
    """Show one instance."""
    row = _find(client, typed.instance)
    text = tables.facts(
        [
            (_("Name"), row["name"]),
            (_("Id"), row["id"]),
            (_("State"), tables.standing(row)),
            (_("Since"), tables.moment(row["since"])),
            (_("Team"), row["team_name"]),
            (_("Launched by"), row["member_name"]),
            (_("Flavor"), row["flavor"]),
            (_("Image"), row["image"]),
            (_("Machine"), row["node_name"] or "–"),
            (_("Price per hour"), tables.money(row["price_per_hour"])),
            (_("Cost so far"), tables.cost(row["cost"])),
            (_("Stops at"), tables.moment(row["stop_at"])),
        ]
    )
    return Answer(row, "\n".join([text, *row["sooner"]]))


def logs(client: Client, typed: Namespace) -> Answer:
    """Show the last lines that an instance wrote."""
    row = _find(client, typed.instance)
    read = client.get(f"instances/{row['id']}/logs", tail=typed.tail)
    return Answer(read, read["text"].rstrip("\n"))


def stop(client: Client, typed: Namespace) -> Answer:
    """Stop instances."""
    return _act(client, typed.instance, "stop")


def start(client: Client, typed: Namespace) -> Answer:
    """Start stopped instances again."""
    return _act(client, typed.instance, "start")


def rm(client: Client, typed: Namespace) -> Answer:
    """Terminate instances, for good."""
    return _act(client, typed.instance, "terminate")


def cost(client: Client, typed: Namespace) -> Answer:
    """Add up what was used and what it cost."""
    query = {"group_by": typed.by or ["instance"]}
    query |= {name: value for name in ("start", "end") if (value := getattr(typed, name))}
    report = client.get("usage", **query)
    rows = [
        (_about(row), tables.hours(row["milliseconds"]), tables.cost(row["cost"]))
        for row in report["results"]
    ]
    rows.append((_("Total"), tables.hours(report["milliseconds"]), tables.money(report["total"])))
    header = (_("WHAT"), _("HOURS"), _("COST"))
    span = f"{tables.moment(report['start'])} – {tables.moment(report['end'])}"
    return Answer(report, f"{span}\n{tables.table(header, rows)}")


def quota(client: Client, typed: Namespace) -> Answer:
    """Show the limits of GPUs and what is left of them."""
    lines = list(client.all("quotas"))
    header = (_("WHOSE"), _("LIMIT"), _("USED"), _("LEFT"))
    rows = [
        (
            line["team_name"] or line["member_name"] or _("Organization"),
            tables.gpus(line["limit_milli_gpus"]),
            tables.gpus(line["used_milli_gpus"]),
            tables.gpus(line["left_milli_gpus"]),
        )
        for line in lines
    ]
    return Answer(lines, tables.table(header, rows))


def _ask_for_token() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().strip()
    return getpass.getpass(_("API token: ")).strip()


def _own_team(client: Client) -> str:
    mine = [team for team in client.all("teams") if team["is_mine"]]
    if len(mine) == 1:
        return str(mine[0]["id"])
    slugs = ", ".join(team["slug"] for team in mine) or "–"
    raise Misused(_("Say for which team, with --team. Yours are: %s") % slugs)


def _variables(pairs: list[str]) -> dict[str, str]:
    found = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if len(found) != len(pairs):
        raise Misused(_("Write each variable once, as --env NAME=VALUE."))
    return found


def _stop_at(hours: float | None) -> str | None:
    if hours is None:
        return None
    return (datetime.now(UTC) + timedelta(hours=hours)).isoformat()


def _wait(client: Client, instance: dict[str, Any]) -> dict[str, Any]:
    shown = ""
    while instance["state"] not in _SETTLED:
        line = tables.standing(instance)
        if line != shown:
            print(line, file=sys.stderr)
            shown = line
        time.sleep(_EVERY_S)
        instance = client.get(f"instances/{instance['id']}")
    return instance


def _find(client: Client, name: str) -> dict[str, Any]:
    """Return an instance by its id, or by its name if only one that has not ended carries it."""
    try:
        instance_id = UUID(name)
    except ValueError:
        return _named(client, name)
    found: dict[str, Any] = client.get(f"instances/{instance_id}")
    return found


def _named(client: Client, name: str) -> dict[str, Any]:
    rows = list(client.all("instances", name=name))
    rows = [row for row in rows if row["state"] != "TERMINATED"] or rows[:1]
    if not rows:
        raise Misused(_("There is no instance named %s that you can see.") % name)
    if len(rows) > 1:
        ids = ", ".join(f"{row['id']} ({row['team_name']})" for row in rows)
        raise Misused(_("Several instances have that name; use an id: %s") % ids)
    only: dict[str, Any] = rows[0]
    return only


def _act(client: Client, names: list[str], verb: str) -> Answer:
    rows = [_find(client, name) for name in names]  # all are found before the first is touched
    done = [client.post(f"instances/{quote(row['id'])}/{verb}") for row in rows]
    return Answer(done, "\n".join(f"{row['name']}  {tables.standing(row)}" for row in done))


def _state(row: dict[str, Any]) -> str:
    place = row["queue_position"]
    return f"{row['state_words']} ({place})" if place else str(row["state_words"])


def _about(row: dict[str, Any]) -> str:
    named = [row[part]["name"] for part in ("team", "member", "instance") if row[part]]
    return "  ".join([part for part in (row["day"], row["flavor"]) if part] + named) or "–"
