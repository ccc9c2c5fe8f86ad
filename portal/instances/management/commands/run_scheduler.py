"""`manage.py run_scheduler`: the planning loop. Start several; one leads, the rest stand by."""

import logging
import signal
import threading
import time
from argparse import ArgumentParser
from types import FrameType
from typing import Any

import psycopg
from django.core.management.base import BaseCommand
from django.db import connection
from django.utils.timezone import now as clock
from psycopg import sql

from portal.instances import placement
from scheduler.queue import CHANNEL

log = logging.getLogger("corral.scheduler")

# A session lock of the leader; planning itself has another, so two leaders would do no harm.
_LEADER = 0x636F727261_02
_RETRY_S = 1.0


class Command(BaseCommand):
    """Plan whenever something changed, and every few seconds in case a wake-up was lost."""

    help = "Place waiting instances on machines; standbys take over from a leader that dies."

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tick = 2.0
        self.ended = threading.Event()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--tick", type=float, default=2.0, help="seconds between two looks")

    def handle(self, *args: Any, **options: Any) -> None:
        self.tick = options["tick"]
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._end)
        while not self.ended.is_set():
            try:
                self._session()
            except psycopg.Error as error:
                # PostgreSQL restarts, fails over, or is not there yet: wait for it.
                log.warning("no connection to PostgreSQL, trying again: %s", str(error).strip())
                self.ended.wait(_RETRY_S)

    def _end(self, number: int, frame: FrameType | None) -> None:
        self.ended.set()

    def _session(self) -> None:
        """Lead, or stand by, for as long as one connection lives."""
        parameters = connection.get_connection_params()
        for name in ("cursor_factory", "context", "prepare_threshold"):
            parameters.pop(name, None)
        with psycopg.connect(**parameters, autocommit=True) as listener:
            listener.execute(sql.SQL("LISTEN {}").format(sql.Identifier(CHANNEL)))
            self._wait_to_lead(listener)
            if not self.ended.is_set():
                log.info("leading")
            while not self.ended.is_set():
                # First plan, then listen: what came before this session is not missed.
                self.plan_once()
                self._wait_for_news(listener)

    def _wait_to_lead(self, listener: "psycopg.Connection[Any]") -> None:
        is_told = False
        while not self.ended.is_set():
            row = listener.execute("SELECT pg_try_advisory_lock(%s)", [_LEADER]).fetchone()
            if row is not None and row[0]:
                return
            if not is_told:
                log.info("standing by: another scheduler leads")
                is_told = True
            self.ended.wait(_RETRY_S)

    def _wait_for_news(self, listener: "psycopg.Connection[Any]") -> None:
        """Return at the first notification, or after a tick; further ones are one wake-up."""
        deadline = time.monotonic() + self.tick
        while not self.ended.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                return
            # In small steps, so that a signal is heard soon.
            if list(listener.notifies(timeout=min(left, 0.5), stop_after=1)):
                list(listener.notifies(timeout=0))
                return

    def plan_once(self) -> None:
        """Plan once; an error costs this cycle only."""
        began = time.perf_counter()
        try:
            placed = placement.cycle(now=clock())
        except Exception:  # the loop outlives whatever one cycle meets
            log.exception("this planning cycle failed; the next one follows")
            connection.close()  # a broken connection is made anew
            self.ended.wait(_RETRY_S)
            return
        if placed:
            took = (time.perf_counter() - began) * 1000
            log.info("placed %d in %.0f ms", len(placed), took)
