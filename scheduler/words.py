"""Why a request waits or where it went, in the reader's language.

The planner answers with a code and arguments (scheduler.engine.plan.Code); here they become
sentences. Nothing is decided here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop, ngettext

from scheduler.engine.plan import Code
from scheduler.models import Request

Args = Mapping[str, Any]

# Why a node takes no work, as the snapshot says it (`Node.why_not`).
WHY_CORDONED = gettext_noop("taken out of scheduling by an operator")
WHY_SILENT = gettext_noop("not answering")
WHY_NO_ROOM_FOR_WORK = gettext_noop("takes no new work")
WHY_GPU_SICK = gettext_noop("a GPU there is not healthy")

_GIB = 2**30


def words(request: Request) -> str:
    """Say why this request waits, or where it is, in one sentence."""
    return sentence(request.reason_code, request.reason_args)


def sentence(code: str, args: Args) -> str:
    """Write the sentence of a decision; a code not known here still gives a true sentence."""
    writer = _WRITERS.get(code)
    if writer is None:
        return _("Waiting to be planned.")
    try:
        return writer(args)
    except (KeyError, TypeError, ValueError):
        # A decision of an older version may lack an argument; explanations never stop anything.
        return _("Waiting for a place.")


def _placed(args: Args) -> str:
    if not args["gpus"]:
        return _("Placed on %(node)s.") % args
    units = int(args["units"])
    amount = f"{args['gpus']} ×" if units % 1000 == 0 else _percent(units)
    return _("Placed on %(node)s: %(amount)s %(model)s.") % {**args, "amount": amount}


def _gpus_busy(args: Args) -> str:
    if args["constraint"] == "units":
        return _(
            "No %(gpu)s has room: %(needed)s of one is needed, %(available)s is free at best."
        ) % {
            "gpu": _gpu(args),
            "needed": _percent(args["needed"]),
            "available": _percent(args["available"]),
        }
    return ngettext(
        "Waiting for %(missing)s more %(gpu)s on one machine: %(needed)s needed together, "
        "%(available)s free at best.",
        "Waiting for %(missing)s more %(gpu)s on one machine: %(needed)s needed together, "
        "%(available)s free at best.",
        int(args["missing"]),
    ) % {**args, "gpu": _gpu(args)}


def _too_little(args: Args) -> str:
    what = str(args["constraint"])
    return _(
        "The machines with enough free GPUs have too little %(what)s: %(needed)s needed, "
        "%(available)s free at best."
    ) % {
        "what": _name(what),
        "needed": _amount(what, args["needed"]),
        "available": _amount(what, args["available"]),
    }


def _behind_others(args: Args) -> str:
    ahead = int(args["ahead"])
    return ngettext(
        "There is room, but it is kept for an older request; %(ahead)s is ahead.",
        "There is room, but it is kept for older requests; %(ahead)s are ahead.",
        ahead,
    ) % {"ahead": ahead}


def _nodes_unavailable(args: Args) -> str:
    nodes = int(args["nodes"])
    return ngettext(
        "%(nodes)s machine could run this, but it takes no work now: %(why)s.",
        "%(nodes)s machines could run this, but none takes work now: %(why)s.",
        nodes,
    ) % {"nodes": nodes, "why": _(str(args["why"]))}


def _no_such_gpu(args: Args) -> str:
    facts = {"gpu": _gpu(args), "pool": args["pool"]}
    if args["memory_bytes"]:
        facts["memory"] = _amount("memory", args["memory_bytes"])
        if args["pool"]:
            return _("No machine in pool %(pool)s has a %(gpu)s with %(memory)s.") % facts
        return _("No machine has a %(gpu)s with %(memory)s.") % facts
    if args["pool"]:
        return _("No machine in pool %(pool)s has a %(gpu)s.") % facts
    return _("No machine has a %(gpu)s.") % facts


def _never_fits(args: Args) -> str:
    what = str(args["constraint"])
    flaws = {
        "negative_amount": _("It asks for a negative amount."),
        "units_out_of_range": _("It asks for less than nothing or more than all of one GPU."),
        "share_of_several": _("A share is a part of one GPU; it asks for shares of several."),
    }
    if what in flaws:
        return flaws[what]
    if what == "gpus":
        return _("Asks for %(needed)s × %(gpu)s on one machine; the largest has %(available)s.") % {
            **args,
            "gpu": _gpu(args),
        }
    return _(
        "Asks for %(needed)s of %(what)s on one machine; the largest that could run it has "
        "%(available)s."
    ) % {
        "needed": _amount(what, args["needed"]),
        "what": _name(what),
        "available": _amount(what, args["available"]),
    }


_WRITERS: dict[str, Callable[[Args], str]] = {
    Code.PLACED: _placed,
    Code.GPUS_BUSY: _gpus_busy,
    Code.TOO_LITTLE_CPU: _too_little,
    Code.TOO_LITTLE_MEMORY: _too_little,
    Code.TOO_LITTLE_DISK: _too_little,
    Code.BEHIND_OTHERS: _behind_others,
    Code.NODES_UNAVAILABLE: _nodes_unavailable,
    Code.NO_SUCH_GPU: _no_such_gpu,
    Code.NEVER_FITS: _never_fits,
}


def estimate(value: Mapping[str, Any] | None) -> str:
    """Say when it may start: "in about 4 min", a range, or that nobody can tell yet."""
    if not value:
        return _("No estimate yet.")
    low, high = float(value["low_s"]), value["high_s"]
    if high is None:
        return _("In %(low)s or later") % {"low": duration(low)}
    low_words, high_words = duration(low), duration(float(high))
    if low_words == high_words:
        return _("In about %(time)s") % {"time": high_words}
    return _("In %(low)s to %(high)s") % {"low": low_words, "high": high_words}


def basis(value: Mapping[str, Any] | None) -> str:
    """Say what an estimate rests on; empty where there is none."""
    return {
        "limits": _("from the time limits of what runs now"),
        "past_runs": _("from how long such instances ran before"),
        "limits_and_past_runs": _("from time limits and from how long such instances ran before"),
    }.get(str(value["basis"]) if value else "", "")


def sooner(request: Request) -> Sequence[str]:
    """List the changes that would start a waiting request now."""
    args, found = request.reason_args, []
    if count := args.get("sooner_gpus"):
        text = ngettext(
            "With %(count)s GPU it would start now.",
            "With %(count)s GPUs it would start now.",
            int(count),
        )
        found.append(text % {"count": count})
    if units := args.get("sooner_units"):
        found.append(_("With %(share)s of a GPU it would start now.") % {"share": _percent(units)})
    found += [
        _("With %(model)s it would start now.") % {"model": model}
        for name, model in sorted(args.items())
        if name.startswith("sooner_model_")
    ]
    if args.get("sooner_any_pool"):
        found.append(_("In another pool it would start now."))
    return found


def duration(seconds: float) -> str:
    """Write a time span with one unit, for estimates: "40 s", "4 min", "3 h", "2 d"."""
    if seconds < 60:
        return _("%(n)s s") % {"n": round(seconds)}
    if seconds < 3600:
        return _("%(n)s min") % {"n": round(seconds / 60)}
    if seconds < 48 * 3600:
        return _("%(n)s h") % {"n": round(seconds / 3600)}
    return _("%(n)s d") % {"n": round(seconds / 86400)}


def _name(what: str) -> str:
    return {"cpu": _("CPU"), "memory": _("memory"), "disk": _("disk")}[what]


def _gpu(args: Args) -> str:
    return _("%(model)s GPU") % {"model": args["model"]} if args["model"] else _("GPU")


def _percent(units: int | str) -> str:
    return f"{int(units) / 10:g} %"


def _amount(what: str, value: int | str) -> str:
    if what == "cpu":
        cores = int(value) / 1000
        return ngettext("%(n)s core", "%(n)s cores", round(cores)) % {"n": f"{cores:g}"}
    return f"{int(value) / _GIB:.4g} GiB"
