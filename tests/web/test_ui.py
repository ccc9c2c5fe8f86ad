"""Amounts, times, sizes and components, as pages write them."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.template import Context, Template, TemplateSyntaxError
from django.utils.translation import override

from portal.money import Money
from portal.web.templatetags import ui


def rendered(source: str, **context: object) -> str:
    return Template(source).render(Context(context)).strip()


@pytest.mark.parametrize(
    ("amount", "currency", "most", "text"),
    [
        ("1234.5", "USD", None, "$1,234.50"),
        ("0.005", "USD", 4, "$0.005"),
        ("0.000123456789", "USD", 12, "$0.000123456789"),
        ("2.49", "EUR", 12, "€2.49"),
        ("1234", "JPY", None, "¥1,234"),
        ("1.5", "KWD", None, "KWD1.500"),
        ("-3", "USD", None, "-$3.00"),
        ("100000000000000000.01", "USD", None, "$100,000,000,000,000,000.01"),
    ],
)
def test_an_amount_is_exact_and_has_its_currency(
    amount: str, currency: str, most: int | None, text: str
) -> None:
    assert ui.money(Money(Decimal(amount), currency), most).replace("\xa0", "") == text


def test_what_is_unknown_is_two_dashes_and_never_zero() -> None:
    assert ui.money(None) == ui.gib(None) == ui.gpus(None) == ui.lasting(None) == "--"
    assert ui.since(None) == "--"
    assert ui.money(Money(Decimal(0), "USD")) == "$0.00"


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0 s"), (59_999, "59 s"), (61_000, "1 min 01 s"), (11_525_000, "3 h 12 min 05 s")],
)
def test_a_duration_is_written_to_the_second(milliseconds: int, text: str) -> None:
    assert ui.lasting(milliseconds) == text


@pytest.mark.parametrize(("milli", "text"), [(250, "0.25"), (1000, "1"), (11_250, "11.25")])
def test_thousandths_are_written_as_gpus(milli: int, text: str) -> None:
    assert ui.gpus(milli) == text


def test_bytes_are_written_in_gib() -> None:
    assert ui.gib(80 * 2**30) == "80 GiB"
    assert ui.gib(2**29) == "0.5 GiB"
    assert ui.gib(0) == "0 GiB"


def test_a_moment_says_how_long_ago_and_exactly_when() -> None:
    moment = datetime.now(UTC) - timedelta(hours=3, minutes=5)

    html = ui.since(moment)

    assert "3 hours ago" in html
    assert f'title="{moment:%Y-%m-%d %H:%M:%S} UTC"' in html
    assert 'data-since="ago"' in html
    assert "in 3 hours" in ui.since(datetime.now(UTC) + timedelta(hours=3, minutes=5))


def test_a_moment_is_told_in_the_readers_language() -> None:
    with override("zh-hans"):
        assert "3小时前" in ui.since(datetime.now(UTC) - timedelta(hours=3, minutes=5))


def test_an_icon_is_decoration_unless_it_has_a_label() -> None:
    assert 'aria-hidden="true"' in ui.icon("cpu")
    assert 'aria-label="GPU"' in ui.icon("cpu", "GPU")
    with pytest.raises(TemplateSyntaxError):
        ui.icon("no-such-icon")


def test_a_component_sees_only_what_it_is_given() -> None:
    html = rendered(
        '{% component "card" %}<p>{{ title }}</p>{% endcomponent %}', title="The page's own"
    )

    assert "<p>The page&#x27;s own</p>" in html
    assert "<h2>" not in html


def test_a_fill_goes_where_the_component_wants_it() -> None:
    html = rendered(
        '{% component "card" %}{% fill footer %}below{% endfill %}body{% endcomponent %}'
    )

    assert html.index("body") < html.index("<footer>below</footer>")


def test_what_people_type_is_never_markup() -> None:
    html = rendered(
        '{% component "card" title=name %}{{ name }}{% endcomponent %}', name="<script>alert(1)"
    )

    assert "<script>" not in html
    assert html.count("&lt;script&gt;") == 2


def test_a_state_is_a_word_and_an_icon_and_not_only_a_colour() -> None:
    html = rendered('{% state "LOST" %}{% state "LOST" "gpu" %}')

    assert html.count("Lost") == 2
    assert html.count("<svg") == 2


@pytest.mark.parametrize(
    ("cause", "chinese"),
    [
        ("It is ready to use.", "已可使用。"),
        ("price change", "价格已变更。"),
        ("the node's own words", "the node's own words"),
    ],
)
def test_a_bill_says_why_in_the_language_of_its_reader(cause: str, chinese: str) -> None:
    with override("zh-hans"):
        assert ui.because(cause) == chinese


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0.000 s"),
        (14_890, "14.890 s"),
        (65_250, "1 min 05.250 s"),
        (3_600_001, "1 h 00 min 00.001 s"),
    ],
)
def test_a_bill_tells_time_to_the_millisecond(milliseconds: int, text: str) -> None:
    assert ui.lasting(milliseconds, "ms") == text
