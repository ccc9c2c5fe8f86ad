"""Which runtime this node uses: the one that was asked for, or the first that answers."""

from agents.config import Config
from agents.runtimes import Runtime, RuntimeSilent, UnableToChoose
from agents.runtimes.docker import DockerRuntime
from agents.runtimes.process import ProcessRuntime


def open_runtime(config: Config, *, node_id: str) -> Runtime:
    """Open the runtime; raise `UnableToChoose` if the one that was asked for does not answer."""
    if config.runtime == "process":
        return ProcessRuntime(config.state_dir, has_real_gpus=config.has_real_gpus)
    problems = []
    for name in (config.runtime,) if config.runtime else ("docker", "podman"):
        try:
            return DockerRuntime(name, node_id=node_id, has_real_gpus=config.has_real_gpus)
        except RuntimeSilent as error:
            problems.append(str(error))
    if config.runtime:
        raise UnableToChoose(" ".join(problems))
    return ProcessRuntime(config.state_dir, has_real_gpus=config.has_real_gpus)
