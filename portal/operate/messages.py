"""Message catalogues without GNU gettext: `python -m portal.operate.messages compile`."""

import sys
from pathlib import Path

from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po

LOCALES = Path(__file__).resolve().parent.parent / "locale"


def compile_all(locales: Path = LOCALES) -> int:
    """Write the .mo beside each .po and return how many there were."""
    count = 0
    for source in sorted(locales.glob("*/LC_MESSAGES/*.po")):
        with source.open("rb") as text:
            catalogue = read_po(text, locale=source.parts[-3])
        with source.with_suffix(".mo").open("wb") as binary:
            write_mo(binary, catalogue)
        count += 1
    return count


if __name__ == "__main__":
    if sys.argv[1:] != ["compile"]:
        sys.exit("usage: python -m portal.operate.messages compile")
    compile_all()
