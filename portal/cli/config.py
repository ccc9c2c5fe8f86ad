"""Where the portal is and which token to use: the environment, or a file only its owner reads."""

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Config:
    """The portal's address and an API token; either may be empty."""

    url: str = ""
    token: str = ""


def path() -> Path:
    """Return where `login` writes."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "corral" / "config.json"


def load() -> Config:
    """Read the file; CORRAL_URL and CORRAL_TOKEN win over it."""
    saved: dict[str, str] = {}
    try:
        saved = json.loads(path().read_text())
    except (OSError, ValueError):
        saved = {}  # not signed in yet, or damaged: `login` writes it anew
    url = os.environ.get("CORRAL_URL") or saved.get("url", "")
    # A token goes to the portal it was saved for, and to no other.
    token = saved.get("token", "") if url == saved.get("url") else ""
    return Config(url=url, token=os.environ.get("CORRAL_TOKEN") or token)


def save(config: Config) -> Path:
    """Write the file anew, readable by its owner alone, and return where it is."""
    target = path()
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent)  # made with mode 0600
    with os.fdopen(handle, "w") as file:
        json.dump(asdict(config), file, indent=2)
    Path(name).replace(target)
    return target
