"""Where sockets call the domain: it blocks, and the event loop must not.

Pools are apart, so that slow reports never hold up heartbeats. Each thread keeps its connection to
the database, and tests it before use.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from django.db import connection

_P = ParamSpec("_P")
_R = TypeVar("_R")

REPORTS: Final = ThreadPoolExecutor(4, thread_name_prefix="live-reports")
PULSE: Final = ThreadPoolExecutor(1, thread_name_prefix="live-pulse")
STORE: Final = ThreadPoolExecutor(1, thread_name_prefix="live-store")
READERS: Final = ThreadPoolExecutor(2, thread_name_prefix="live-readers")


async def call(
    pool: ThreadPoolExecutor, work: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs
) -> _R:
    """Run `work` in a thread of `pool` and return what it returns, or raise what it raises."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(pool, partial(_run, partial(work, *args, **kwargs)))


def _run(work: Callable[[], _R]) -> _R:
    # Have Django ask the server before the first query, whether it is still there.
    wrapper: Any = connection
    wrapper.health_check_done = False
    try:
        return work()
    finally:
        if connection.connection is not None and connection.errors_occurred:
            connection.close()
