"""Blocking calls, awaited without a pool."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """Await a blocking call in a daemon thread of its own.

    Not the loop's pool: a call that hangs must neither hold a place in it nor the program's end.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, problem = None, None
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - it is raised where it is awaited
            problem = error
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, problem)

    threading.Thread(target=work, daemon=True).start()
    return await future
