"""The English sentence of every decision, from its code and arguments."""

from collections.abc import Mapping

from scheduler.engine.plan import Code

Args = Mapping[str, int | str]

_GIB = 2**30

_FLAWS = {
    "negative_amount": "It asks for a negative amount.",
    "units_out_of_range": "It asks for less than nothing or more than all of one GPU.",
    "share_of_several": "A share is a part of one GPU; it asks for shares of several.",
}


def sentence(code: Code, args: Args) -> str:
    """Write the sentence for a decision; it needs exactly the arguments that the planner gives."""
    return _WRITERS[code](args)


def _placed(args: Args) -> str:
    if not args["gpus"]:
        return f"Placed on {args['node']}."
    units = int(args["units"])
    amount = f"{args['gpus']} ×" if units % 1000 == 0 else f"{_percent(units)} of one"
    return f"Placed on {args['node']}: {amount} {args['model']}."


def _gpus_busy(args: Args) -> str:
    if args["constraint"] == "units":
        return (
            f"No {_gpu(args)} has room: {_percent(args['needed'])} of one is needed, "
            f"{_percent(args['available'])} is free at best."
        )
    return (
        f"Waiting for {_gpus(args['missing'], args, 'more ')} on one machine: "
        f"{args['needed']} needed together, {args['available']} free at best."
    )


def _too_little(args: Args) -> str:
    what = str(args["constraint"])
    return (
        f"The machines with enough free GPUs have too little {_NAMES[what]}: "
        f"{_amount(what, args['needed'])} needed, "
        f"{_amount(what, args['available'])} free at best."
    )


def _behind_others(args: Args) -> str:
    return f"There is room, but it is kept for an older request; {args['ahead']} ahead."


def _nodes_unavailable(args: Args) -> str:
    machines = "machine" if args["nodes"] == 1 else "machines"
    return f"{args['nodes']} {machines} could run this, but none takes work now: {args['why']}."


def _no_such_gpu(args: Args) -> str:
    where = f" in pool {args['pool']}" if args["pool"] else ""
    memory = f" with {_amount('memory', args['memory_bytes'])}" if args["memory_bytes"] else ""
    return f"No machine{where} has a {_gpu(args)}{memory}."


def _never_fits(args: Args) -> str:
    what = str(args["constraint"])
    if what in _FLAWS:
        return _FLAWS[what]
    if what == "gpus":
        return (
            f"Asks for {_gpus(args['needed'], args)} on one machine; the largest has "
            f"{args['available']}."
        )
    return (
        f"Asks for {_amount(what, args['needed'])} of {_NAMES[what]} on one machine; the largest "
        f"that could run it has {_amount(what, args['available'])}."
    )


_WRITERS = {
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

_NAMES = {"cpu": "CPU", "memory": "memory", "disk": "disk"}


def _gpu(args: Args) -> str:
    return f"{args['model']} GPU" if args["model"] else "GPU"


def _gpus(number: int | str, args: Args, more: str = "") -> str:
    return f"{number} {more}{_gpu(args)}{'' if number == 1 else 's'}"


def _percent(units: int | str) -> str:
    return f"{int(units) / 10:g} %"


def _amount(what: str, value: int | str) -> str:
    if what == "cpu":
        return f"{int(value) / 1000:g} cores"
    return f"{int(value) / _GIB:.4g} GiB"
