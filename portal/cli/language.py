"""The words of the command line, in the language of the terminal."""

import gettext
import locale
import os
from pathlib import Path

_CATALOGUES = Path(__file__).resolve().parent.parent / "locale"


def language() -> str:
    """Return what the terminal asks for, as in "zh-hans" or "en"."""
    wanted = next(
        (os.environ[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if os.environ.get(name)),
        "en",
    )
    code = locale.normalize(wanted).partition(".")[0].replace("_", "-").lower()
    return "zh-hans" if code.startswith("zh") else "en"


def _catalogue() -> gettext.NullTranslations:
    folder = {"zh-hans": "zh_Hans"}.get(language(), "en")
    return gettext.translation("django", _CATALOGUES, languages=[folder], fallback=True)


_ = _catalogue().gettext
