"""What happened to a node is said in words, never as a code."""

import re
from pathlib import Path

from portal.fleet.models import GpuState, Link
from portal.web import looks
from portal.web.templatetags import ui

FLEET = Path(__file__).resolve().parents[2] / "portal" / "fleet"
WRITTEN = re.compile(r"history\.note\([^()]*kind=\"(\w+)\"|_done\(actor, node, \"(\w+)\"")


def test_every_kind_of_event_has_words() -> None:
    sources = "\n".join(path.read_text() for path in FLEET.glob("*.py"))
    kinds = {first or second for first, second in WRITTEN.findall(sources)}
    kinds |= {link.value.lower() for link in Link}
    kinds |= {f"gpu_{state.value.lower()}" for state in GpuState}

    assert {"joined", "session", "gpu_added", "retired"} <= kinds
    assert [kind for kind in sorted(kinds) if kind not in looks.HAPPENED] == []
    assert ui.happened("gpu_added") == "GPU added"
