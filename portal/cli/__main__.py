"""`corral`: reads what was typed, runs one command, and ends with a code that scripts can use.

0: done. 1: the portal refused. 2: typed wrongly. 3: the portal can't be reached.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from uuid import uuid4

from portal.cli import commands, config
from portal.cli.client import Client, Refused, Unreachable
from portal.cli.commands import Answer, Command, Misused
from portal.cli.language import _

OK, REFUSED, USAGE, UNREACHABLE = 0, 1, 2, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    inner: list[str] = []
    if words[:1] == ["launch"] and "--" in words:  # what follows is the instance's command
        cut = words.index("--")
        words, inner = words[:cut], words[cut + 1 :]
    typed = _parser().parse_args(words)
    typed.command = inner
    try:
        answer = _run(typed)
    except Refused as refusal:
        if typed.json:
            print(json.dumps({"error": refusal.error}, ensure_ascii=False))
        return _complain(
            REFUSED, str(refusal), str(refusal.error.get("help") or ""), _fields(refusal)
        )
    except Unreachable as error:
        return _complain(UNREACHABLE, str(error), _retry_hint(typed))
    except Misused as error:
        return _complain(USAGE, str(error))
    except (KeyboardInterrupt, EOFError):
        return _complain(USAGE, _("Interrupted."))
    except BrokenPipeError:
        sys.stderr.close()  # whoever read us has seen enough
        return OK
    return OK if answer.is_ok else REFUSED


def _run(typed: argparse.Namespace) -> Answer:
    answer: Answer
    if typed.run is commands.login:
        answer = commands.login(typed)
    else:
        saved = config.load()
        if not saved.url or not saved.token:
            raise Misused(_("Not signed in. Run: corral login"))
        run: Command = typed.run
        answer = run(Client(saved, timeout_s=typed.timeout), typed)
    print(json.dumps(answer.data, ensure_ascii=False) if typed.json else answer.text, flush=True)
    return answer


def _complain(code: int, *lines: str) -> int:
    first, *rest = [line for line in lines if line]
    print(f"corral: {first}", *rest, sep="\n        ", file=sys.stderr)
    return code


def _fields(refusal: Refused) -> str:
    """Return the sentences of the fields, where the refusal names fields."""
    details = refusal.error.get("details") or {}
    found = [
        f"{field}: {' '.join(map(str, sentences))}"
        for field, sentences in details.items()
        if isinstance(sentences, list) and sentences != [str(refusal)]
    ]
    return "\n        ".join(found)


def _retry_hint(typed: argparse.Namespace) -> str:
    if typed.run is not commands.launch:
        return ""
    key: str = typed.key
    return _("It may have been launched all the same. Repeat it safely with: --key %s") % key


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--json", action="store_true", help=_("print JSON"))
    shared.add_argument(
        "--timeout", type=float, default=30.0, metavar="S", help=_("seconds for each answer")
    )
    parser = argparse.ArgumentParser(
        prog="corral", description=_("Launch and watch GPU instances.")
    )
    group = parser.add_subparsers(required=True, metavar=_("COMMAND"))

    def command(run: object, text: str) -> argparse.ArgumentParser:
        name = getattr(run, "__name__", "")
        added = group.add_parser(name, parents=[shared], help=text, description=text)
        added.set_defaults(run=run)
        return added

    login = command(commands.login, _("sign in with an API token"))
    login.add_argument("--url", help=_("the portal's address"))
    login.add_argument("--token", help=_("asked for, or read from standard input, if left out"))
    _launch(command(commands.launch, _("launch an instance")))
    ls = command(commands.ls, _("list instances"))
    ls.add_argument("--all", action="store_true", help=_("terminated ones, too"))
    ls.add_argument("--state", action="append", default=[], help=_("only this state"))
    for run, text in ((commands.show, _("show an instance")), (commands.logs, _("show its logs"))):
        one = command(run, text)
        one.add_argument("instance", help=_("name or id"))
        if run is commands.logs:
            one.add_argument("--tail", type=int, default=200, metavar="N", help=_("lines"))
    for run, text in (
        (commands.stop, _("stop instances")),
        (commands.start, _("start stopped instances again")),
        (commands.rm, _("terminate instances, for good")),
    ):
        command(run, text).add_argument("instance", nargs="+", help=_("name or id"))
    _cost(command(commands.cost, _("show usage and what it cost")))
    command(commands.quota, _("show limits and what is left"))
    return parser


def _launch(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s NAME --flavor F --image I [OPTION ...] [-- COMMAND ...]"
    parser.epilog = _("What follows “--” runs instead of the image's own command.")
    parser.add_argument("name")
    parser.add_argument("--flavor", required=True)
    parser.add_argument("--image", required=True)
    parser.add_argument("--team", help=_("id or slug; your only team, if left out"))
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--priority", type=int, default=0, help="-100 … 100")
    parser.add_argument(
        "--stop-after", type=float, metavar="HOURS", help=_("have the portal stop it then")
    )
    parser.add_argument("--wait", action="store_true", help=_("until it runs or has failed"))
    parser.add_argument(
        "--key", default=str(uuid4()), help=_("idempotency key: a repeat makes no second instance")
    )


def _cost(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--start", help=_("from, as in 2026-03-01T00:00:00Z"))
    parser.add_argument("--end", help=_("to"))
    parser.add_argument(
        "--by",
        action="append",
        choices=["team", "member", "flavor", "day", "instance"],
        help=_("group by; may be given several times"),
    )


if __name__ == "__main__":
    sys.exit(main())
