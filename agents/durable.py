"""Files that are either the old or the new, whatever happens in between."""

import os
from pathlib import Path


def write(path: Path, data: bytes) -> None:
    """Replace a file by a temporary one that has reached the disk; only its owner may read it."""
    temporary = path.with_name(path.name + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
