"""Who in this process listens to which topic, and the one connection to the other processes.

Events come by Valkey's publish/subscribe. Samples are handed over inside the process, and go
through Valkey only while another process has said that it has readers for them. Losing Valkey
costs liveness between processes, nothing else: it is connected to again for ever.
"""

import asyncio
import contextlib
import json
import logging
import random
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

import redis.asyncio
from django.conf import settings
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from portal import events
from portal.fleet import commands
from portal.live.figures import Figures, NodeFigures

log = logging.getLogger(__name__)

_SAMPLES: Final = "corral:samples:"
_WANTED: Final = "corral:wanted"
_LISTEN_S: Final = 5.0
_SILENCE_S: Final = 15.0
# Other processes hear this often what is wanted here, and forget it after a while.
_WANT_EVERY_S: Final = 10.0
_WANTED_FOR_S: Final = 30.0
_PUBLISH_EVERY_S: Final = 0.1
_ANSWER_KEPT_S: Final = 60
# What a node measured last is shown, with its age, for so long after its socket is gone.
_LATEST_KEPT_S: Final = 900.0


class Reader(Protocol):
    """Somebody who listens to topics. No method may wait."""

    def changed(self, topic: str, kind: str, id: str) -> None:
        """Hear that a thing changed."""

    def measured(self, topic: str, text: str) -> None:
        """Get the frame with the newest samples of a topic."""

    def missed(self) -> None:
        """Learn that events may have been lost."""


class Hub:
    """The switchboard of one process; `current()` returns it."""

    def __init__(self) -> None:
        self.epoch = secrets.token_hex(6)
        self._id = secrets.token_hex(6)
        self._readers: dict[str, set[Reader]] = {}
        self._questions: dict[str, Callable[[dict[str, Any]], None]] = {}
        self._latest: dict[str, tuple[float, NodeFigures]] = {}
        self._from_others: dict[str, str] = {}
        self._wanted: dict[str, float] = {}
        self._outgoing: dict[str, str] = {}
        self._has_outgoing = asyncio.Event()
        self._pubsub: PubSub | None = None
        self._loop = asyncio.get_running_loop()
        self._client = redis.asyncio.Redis.from_url(
            settings.REDIS_URL,
            # The listening connection is quiet for hours; its life is tested with pings instead.
            socket_timeout=None,
            socket_connect_timeout=2.0,
            retry=Retry(NoBackoff(), 0),
        )
        self._tasks = {
            self._loop.create_task(work, name=name)
            for name, work in (
                ("hub-listen", self._listen()),
                ("hub-publish", self._publish()),
                ("hub-want", self._want()),
            )
        }

    async def close(self) -> None:
        """End the hub's tasks and connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    # -- readers ---------------------------------------------------------------------------------

    def read(self, topic: str, reader: Reader) -> None:
        """Have `reader` hear of a topic from now on, beginning with its latest samples."""
        readers = self._readers.setdefault(topic, set())
        if not readers and topic.startswith("gpus:"):
            self._subscribe(_SAMPLES + topic)
            self._spawn(self._say_wanted([topic]))
        readers.add(reader)
        text = self._latest_of(topic) or self._from_others.get(topic)
        if text is not None:
            reader.measured(topic, text)

    def leave(self, topic: str, reader: Reader) -> None:
        """Have `reader` hear of a topic no more."""
        readers = self._readers.get(topic)
        if readers is None:
            return
        readers.discard(reader)
        if not readers:
            del self._readers[topic]
            self._from_others.pop(topic, None)
            if topic.startswith("gpus:"):
                self._unsubscribe(_SAMPLES + topic)

    # -- nodes -----------------------------------------------------------------------------------

    def connected(
        self, node_id: object, figures: NodeFigures, asked: Callable[[dict[str, Any]], None]
    ) -> None:
        """Note that this process has the socket of a node: its samples and questions meet here."""
        self._latest[figures.topic] = (self._loop.time(), figures)
        channel = commands.question_channel(str(node_id))
        self._questions[channel] = asked
        self._subscribe(channel)

    def disconnected(self, node_id: object, asked: Callable[[dict[str, Any]], None]) -> None:
        """Note that the socket of a node is gone, unless a newer one is here already."""
        channel = commands.question_channel(str(node_id))
        if self._questions.get(channel) == asked:
            del self._questions[channel]
            self._unsubscribe(channel)

    def measured(self, figures: NodeFigures, news: dict[str, Figures]) -> None:
        """Hand a node's news to the readers here, and to the processes that want them."""
        now = self._loop.time()
        self._latest[figures.topic] = (now, figures)
        for topic in figures.topics(news):
            readers = self._readers.get(topic)
            is_wanted = self._wanted.get(topic, 0.0) > now
            if not readers and not is_wanted:
                continue
            text = figures.text(topic, news)
            if text is None:
                continue
            for reader in readers or ():
                reader.measured(topic, text)
            if is_wanted:
                self._outgoing[topic] = text
                self._has_outgoing.set()

    def answer(self, question_id: str, result: dict[str, Any]) -> None:
        """Send a node's answer to whoever asked."""
        self._spawn(self._push_answer(question_id, json.dumps(result)))

    # -- inside ----------------------------------------------------------------------------------

    def _latest_of(self, topic: str) -> str | None:
        if topic.startswith("gpus:node:"):
            known = self._latest.get(topic)
            return known[1].text(topic) if known else None
        if topic.startswith("gpus:instance:"):
            for _, figures in self._latest.values():
                text = figures.text(topic)
                if text is not None:
                    return text
        return None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _subscribe(self, channel: str) -> None:
        if self._pubsub is not None:
            self._spawn(_quietly(self._pubsub.subscribe(channel)))

    def _unsubscribe(self, channel: str) -> None:
        if self._pubsub is not None:
            self._spawn(_quietly(self._pubsub.unsubscribe(channel)))

    async def _listen(self) -> None:
        """Keep the listening connection, for ever."""
        is_first = True
        while True:
            try:
                await self._listen_once(is_first)
            except (redis.RedisError, OSError, asyncio.IncompleteReadError) as error:
                log.warning("Valkey is out of reach, live pages wait: %s", error)
            finally:
                self._pubsub = None
            is_first = False
            await asyncio.sleep(random.uniform(0.2, 1.0))  # noqa: S311  (only spreads retries)

    async def _listen_once(self, is_first: bool) -> None:
        pubsub = self._client.pubsub()
        try:
            async with asyncio.timeout(_LISTEN_S):
                await pubsub.psubscribe(events.CHANNEL + "*")
                # From here on whoever comes subscribes for himself; these came before.
                self._pubsub = pubsub
                channels = [
                    _WANTED,
                    *self._questions,
                    *(_SAMPLES + topic for topic in self._readers if topic.startswith("gpus:")),
                ]
                await pubsub.subscribe(*channels)
            if not is_first:
                self._say_missed()
            heard_at = self._loop.time()
            while self._loop.time() - heard_at < _SILENCE_S:
                message = await pubsub.get_message(timeout=_LISTEN_S)
                if message is None:
                    await pubsub.ping()
                    continue
                heard_at = self._loop.time()
                self._take(message)
            log.warning("Valkey does not answer; connecting anew")
        finally:
            with contextlib.suppress(Exception):
                await pubsub.aclose()  # type: ignore[no-untyped-call]

    def _say_missed(self) -> None:
        self.epoch = secrets.token_hex(6)
        for reader in {reader for readers in self._readers.values() for reader in readers}:
            reader.missed()
        self._spawn(self._say_wanted(self._sample_topics()))

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] not in {"message", "pmessage"}:
            return
        channel = message["channel"].decode()
        data: bytes = message["data"]
        try:
            if channel.startswith(events.CHANNEL):
                event = json.loads(data)
                for reader in list(self._readers.get(event["topic"], ())):
                    reader.changed(event["topic"], event["kind"], event["id"])
            elif channel.startswith(_SAMPLES):
                self._take_samples(channel.removeprefix(_SAMPLES), data.decode())
            elif channel == _WANTED:
                self._take_wanted(json.loads(data))
            elif channel in self._questions:
                self._questions[channel](json.loads(data))
        except (ValueError, KeyError, TypeError):
            log.exception("a message on %s makes no sense", channel)

    def _take_samples(self, topic: str, text: str) -> None:
        readers = self._readers.get(topic)
        if readers:
            self._from_others[topic] = text
            for reader in list(readers):
                reader.measured(topic, text)

    def _take_wanted(self, message: dict[str, Any]) -> None:
        if message["by"] == self._id:
            return
        now = self._loop.time()
        for topic in message["topics"]:
            is_new = self._wanted.get(topic, 0.0) <= now
            self._wanted[topic] = now + _WANTED_FOR_S
            text = self._latest_of(topic) if is_new else None
            if text is not None:
                self._outgoing[topic] = text
                self._has_outgoing.set()

    def _sample_topics(self) -> list[str]:
        return [topic for topic in self._readers if topic.startswith("gpus:")]

    async def _want(self) -> None:
        while True:
            await asyncio.sleep(_WANT_EVERY_S)
            await self._say_wanted(self._sample_topics())
            now = self._loop.time()
            self._wanted = {topic: end for topic, end in self._wanted.items() if end > now}
            self._latest = {
                topic: known
                for topic, known in self._latest.items()
                if now - known[0] < _LATEST_KEPT_S
            }

    async def _say_wanted(self, topics: list[str]) -> None:
        if topics:
            message = json.dumps({"by": self._id, "topics": topics})
            await _quietly(self._client.publish(_WANTED, message))

    async def _publish(self) -> None:
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing.clear()
            outgoing, self._outgoing = self._outgoing, {}
            pipeline = self._client.pipeline(transaction=False)
            for topic, text in outgoing.items():
                pipeline.publish(_SAMPLES + topic, text)
            await _quietly(pipeline.execute())
            await asyncio.sleep(_PUBLISH_EVERY_S)

    async def _push_answer(self, question_id: str, text: str) -> None:
        key = commands.answer_key(question_id)
        pipeline = self._client.pipeline(transaction=False)
        pipeline.rpush(key, text)
        pipeline.expire(key, _ANSWER_KEPT_S)
        await _quietly(pipeline.execute())


async def _quietly(work: Any) -> None:
    """Await something of Valkey that may be lost: readers and askers re-sync by themselves."""
    try:
        async with asyncio.timeout(2.0):
            await work
    except (redis.RedisError, OSError, TimeoutError) as error:
        log.debug("not told: %s", error)


_hubs: "WeakKeyDictionary[asyncio.AbstractEventLoop, Hub]" = WeakKeyDictionary()


def current() -> Hub:
    """Return the hub of this process, made on first use."""
    loop = asyncio.get_running_loop()
    hub = _hubs.get(loop)
    if hub is None:
        hub = _hubs[loop] = Hub()
    return hub


async def close() -> None:
    """Close the hub of this process, if it was ever used."""
    hub = _hubs.pop(asyncio.get_running_loop(), None)
    if hub is not None:
        await hub.close()
