"""The demo image, made from this machine's own shell: no registry, no download, a few megabytes.

`python -m agents.runtimes.tiny_image` imports it into the engine that answers.
"""

import io
import json
import logging
import os
import re
import shutil
import subprocess
import tarfile

import docker

from agents.runtimes import UnableToStart

log = logging.getLogger("corral.agent.image")

NAME, TAG = "corral/demo", "1"
IMAGE = f"{NAME}:{TAG}"
PROGRAMS = [
    *("sh", "cat", "cut", "date", "df", "dd", "echo", "env", "false", "head", "hostname", "id"),
    *("kill", "ls", "mkdir", "mount", "nproc", "ps", "pwd", "rm", "seq", "sleep", "sort", "sync"),
    *("tail", "touch", "tr", "true", "uname", "wc"),
]

# Real, if modest, work: a share of a core in bursts, a line every few seconds, an end on SIGTERM.
DEMO = """\
echo "computing for ${CORRAL_INSTANCE:-no instance} on GPUs ${CORRAL_GPUS:-none}"
trap 'echo "asked to stop: good-bye after $step steps"; exit 0' TERM INT
step=0 x=1
while :; do
  i=0
  while [ "$i" -lt 8000 ]; do
    i=$((i + 1)) x=$(((x * 1103515245 + 12345) % 2147483648))
  done
  step=$((step + 1))
  [ $((step % 20)) -ne 0 ] || echo "step $step value $x"
  sleep 0.25 &
  wait $!
done
"""


def ensure(client: docker.DockerClient) -> None:
    """Have the demo image in the engine; build it from this machine's files if it is missing."""
    try:
        client.images.get(IMAGE)
    except docker.errors.ImageNotFound:
        log.info("making the image %s", IMAGE)
        reply = client.api.import_image_from_data(
            archive(), repository=NAME, tag=TAG, changes=['CMD ["/bin/sh", "/demo.sh"]']
        )
        # Podman's import forgets the tag, so it is given once more.
        client.images.get(json.loads(reply.strip().splitlines()[-1])["status"]).tag(NAME, TAG)


def archive() -> bytes:
    """Return the image's root as a tar: programs, the libraries they load, and the demo."""
    programs = {f"bin/{name}": path for name in PROGRAMS if (path := shutil.which(name))}
    if "bin/sh" not in programs:
        raise UnableToStart("image_missing", "This node has no shell to make the demo image from.")
    files = dict(programs)
    for path in programs.values():
        files |= {library.lstrip("/"): library for library in _libraries(path)}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, mode in (("tmp", 0o1777), ("root", 0o700), ("etc", 0o755), ("proc", 0o755)):
            _directory(tar, name, mode)
        _text(tar, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
        _text(tar, "demo.sh", DEMO)
        for name, path in sorted(files.items()):
            entry = tar.gettarinfo(os.path.realpath(path), arcname=name)
            entry.uid = entry.gid = 0
            with open(path, "rb") as file:
                tar.addfile(entry, file)
    return buffer.getvalue()


def _libraries(program: str) -> list[str]:
    """List the shared libraries of a program; none if it is linked statically."""
    ldd = shutil.which("ldd")
    if ldd is None:
        return []
    found = subprocess.run(  # noqa: S603 - the system's own programs
        [ldd, program], capture_output=True, text=True, check=False, timeout=20
    )
    return re.findall(r"(/\S+) \(0x", found.stdout)


def _directory(tar: tarfile.TarFile, name: str, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    tar.addfile(entry)


def _text(tar: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(text.encode()), 0o644
    tar.addfile(entry, io.BytesIO(text.encode()))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    ensure(docker.from_env())
