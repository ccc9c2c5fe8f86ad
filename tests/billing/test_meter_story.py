"""Whatever happens in whatever order: segments tile the running time, and the books balance."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from portal.billing import ledger, meters, prices, proof, rating
from portal.billing.models import AccountKind, Entry, Meter, Segment, UsagePosting
from portal.tenants.models import User
from portal.tenants.scope import every_tenant
from tests import factories as make
from tests.billing import house as houses
from tests.billing.house import House

# A minute before a month ends in Berlin. In this machine's future, so that planned prices may still
# be moved.
START = datetime(2035, 3, 31, 21, 59, tzinfo=UTC)
ZONE = "Europe/Berlin"

which = st.integers(0, 2)
# Most of the time things just run on and are reported.
runs_on = st.tuples(
    st.just("run_on"),
    st.sampled_from([1, 999, 20_000, 60_000]) | st.integers(30_000, 400_000),
    st.sampled_from([0, 0, 7, 90_000]),
    st.booleans(),
)
steps = st.lists(
    st.one_of(
        runs_on,
        runs_on,
        runs_on,
        st.tuples(st.just("open"), which),
        st.tuples(st.just("prove"), st.sets(which, min_size=1), st.integers(0, 90_000)),
        st.tuples(st.just("stop"), which),
        st.tuples(st.just("crash"), which),
        st.tuples(st.just("price"), st.integers(1, 10**6), st.integers(0, 200_000)),
        st.tuples(st.just("replay"), st.integers(0, 100)),
    ),
    min_size=8,
    max_size=30,
)


@dataclass
class Model:
    """What must have been billed, by the simplest reckoning."""

    opened: int
    proved: int
    closed: int | None = None
    dropped: int | None = None


@dataclass
class Story:
    """Plays the steps, and keeps the model beside them."""

    house: House
    operator: User
    now: int = 0
    runs: dict[int, tuple[Meter, Model]] = field(default_factory=dict)
    calls: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)

    def at(self, instant: int) -> datetime:
        return START + timedelta(milliseconds=instant)

    def call(self, function: Any, **arguments: Any) -> Any:
        self.calls.append((function, arguments))
        return function(**arguments)

    def run_on(self, milliseconds: int, lag: int, posted: bool) -> None:
        self.now += milliseconds
        self.prove(set(self.runs), lag)
        if posted:
            self.accrue(1)

    def open(self, which: int) -> None:
        if which not in self.runs:
            meter = self.call(self.house.open, at=self.at(self.now))
            self.runs[which] = (meter, Model(self.now, self.now))
            # A replay must name the same run.
            self.calls[-1] = (self.house.open, {"at": self.at(self.now), "subject": meter.subject})

    def prove(self, which: set[int], lag: int) -> None:
        instant = self.now - lag
        known = [self.runs[n] for n in which if n in self.runs]
        self.call(
            meters.prove, proofs={(meter.subject, 1): self.at(instant) for meter, _model in known}
        )
        for _meter, model in known:
            if model.closed is None:
                model.proved = max(model.proved, instant)

    def stop(self, which: int) -> None:
        self._close(which, self.now, None)

    def crash(self, which: int) -> None:
        if which in self.runs:
            self._close(which, self.runs[which][1].proved, self.now)

    def price(self, amount: int, ahead: int) -> None:
        try:
            prices.set_price(
                user=self.operator,
                sku=self.house.sku,
                currency="USD",
                per_hour=Decimal(amount) / 10_000,
                from_at=self.at(self.now + ahead),
                now=self.at(self.now),
            )
        except prices.UnableToSetPrice:
            # Only for a price of the same millisecond, which has begun.
            assert prices.history(sku=self.house.sku).filter(
                during__startswith=self.at(self.now + ahead)
            )

    def replay(self, which: int) -> None:
        if self.calls:
            function, arguments = self.calls[which % len(self.calls)]
            function(**arguments)

    def accrue(self, times: int) -> None:
        for _ in range(times):
            meters.accrue(now=self.at(self.now))

    def _close(self, which: int, at: int, dropped: int | None) -> None:
        if which not in self.runs:
            return
        meter, model = self.runs[which]
        self.call(
            meters.close,
            subject=meter.subject,
            run=1,
            at=self.at(at),
            cause="it ended",
            dropped_until=None if dropped is None else self.at(dropped),
        )
        if model.closed is None:
            model.proved = model.closed = max(model.proved, at)
            model.dropped = dropped


@pytest.mark.slow
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=steps)
def test_any_story_is_billed_once_and_whole(db: None, steps: list[Any]) -> None:
    with transaction.atomic():
        story = Story(houses.build(zone=ZONE), make.user(is_operator=True))
        story.open(0)
        story.open(1)
        for name, *arguments in steps:
            getattr(story, name)(*arguments)
        story.accrue(2)

        with every_tenant("tests"):
            _segments_tile_the_running_time(story)
            _the_ledger_says_what_the_rating_says(story)
        assert list(proof.differences(now=story.at(story.now))) == []
        connection.cursor().execute("SET CONSTRAINTS ALL IMMEDIATE")
        transaction.set_rollback(True)


def _segments_tile_the_running_time(story: Story) -> None:
    for meter, model in story.runs.values():
        reached = model.opened
        for segment in Segment.objects.filter(meter=meter).order_by("during"):
            start, end = (
                (edge - START) // timedelta(milliseconds=1)
                for edge in (segment.during.lower, segment.during.upper)
            )
            assert start == reached, "a gap or an overlap"
            assert segment.state == ("BILLED" if end <= model.proved else "DROPPED")
            reached = end
        assert reached == max(model.proved, model.dropped or 0)


def _the_ledger_says_what_the_rating_says(story: Story) -> None:
    versions = [
        {
            "sku": price.sku,
            "amount": format(price.per_hour, "f"),
            "per": "hour",
            "from": price.during.lower.isoformat(),
            "to": price.during.upper and price.during.upper.isoformat(),
        }
        for price in prices.history(sku=story.house.sku)
    ]
    usage = [
        {
            "id": str(which),
            "sku": story.house.sku,
            "start": story.at(model.opened).isoformat(),
            "end": story.at(model.proved).isoformat(),
        }
        for which, (_meter, model) in story.runs.items()
    ]
    rated = rating.rate(usage=usage, prices=versions, zone=ZONE, currency="USD")

    expected = sorted(
        (month.first, line.unit_price, line.milliseconds, line.amount)
        for month in rated.months
        for line in month.lines
    )
    posted = sorted(
        (line.period, line.price.per_hour, Fraction(line.milliseconds), line.amount)
        for line in UsagePosting.objects.filter(
            organization=story.house.organization
        ).select_related("price")
    )
    assert posted == expected
    total = sum((month.total for month in rated.months), Decimal(0))
    organization = story.house.organization
    assert ledger.balance(organization=organization, kind=AccountKind.RECEIVABLE).amount == total
    assert ledger.balance(organization=organization, kind=AccountKind.REVENUE).amount == -total
    assert sum(entry.amount for entry in Entry.objects.filter(organization=organization)) == 0
