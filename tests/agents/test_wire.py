"""The words between node and portal survive the way, and nothing else gets through."""

import json
from types import UnionType
from typing import Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from agents import wire
from tests.agents.portal import verifies

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INTEGER = st.integers(-(2**63), 2**63 - 1)


def strategy(hint: object) -> st.SearchStrategy:
    """Draw any value of a field's type, and whole messages with every field set."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        fields = get_type_hints(hint)
        return st.builds(hint, **{name: strategy(kind) for name, kind in fields.items()})
    if get_origin(hint) in (Union, UnionType):
        return st.one_of(*map(strategy, get_args(hint)))
    if get_origin(hint) is list:
        return st.lists(strategy(get_args(hint)[0]), max_size=2)
    if get_origin(hint) is dict:
        key, value = get_args(hint)
        return st.dictionaries(strategy(key), strategy(value), max_size=2)
    plain = {
        str: TEXT,
        int: INTEGER,
        float: st.floats(allow_nan=False, allow_infinity=False),
    }
    return plain[hint] if hint in plain else st.from_type(hint)


KINDS = (
    wire.Hello,
    wire.Heartbeat,
    wire.Report,
    wire.Samples,
    wire.CommandResult,
    wire.Welcome,
    wire.Desired,
    wire.Ack,
    wire.Echo,
    wire.Command,
)
MESSAGES = st.one_of(*map(strategy, KINDS))


@settings(max_examples=60, deadline=None)
@given(MESSAGES)
def test_what_is_encoded_is_decoded(message: wire.Message) -> None:
    assert wire.decode(wire.encode(message)) == message


@settings(max_examples=60, deadline=None)
@given(MESSAGES, st.text("abcdefgh_", min_size=9), TEXT)
def test_unknown_fields_are_ignored(message: wire.Message, name: str, value: str) -> None:
    frame = json.loads(wire.encode(message)) | {f"x_{name}": value}

    assert wire.decode(json.dumps(frame)) == message


@settings(max_examples=60, deadline=None)
@given(st.text("abcdefgh", min_size=16, max_size=20), INTEGER)
def test_an_unknown_type_is_named_not_feared(kind: str, value: int) -> None:
    frame = json.dumps({"type": kind, "seq": value})

    assert wire.decode(frame) == wire.Unknown(type=kind)


@settings(max_examples=60, deadline=None)
@given(st.binary() | TEXT | st.recursive(INTEGER | TEXT, st.lists).map(json.dumps))
def test_garbage_raises_one_error(data: bytes | str) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(data)


@settings(max_examples=60, deadline=None)
@given(MESSAGES, st.data())
def test_a_cut_frame_raises_one_error(message: wire.Message, data: st.DataObject) -> None:
    frame = wire.encode(message)
    length = data.draw(st.integers(0, len(frame) - 1))

    with pytest.raises(wire.WireError):
        wire.decode(frame[:length])


@pytest.mark.parametrize(
    "frame",
    [
        '{"type":"ack"}',
        '{"type":"ack","seq":"1"}',
        '{"type":"ack","seq":1.5}',
        '{"type":1,"seq":1}',
        '{"type":"report","seq":1,"wall_time":1,"mono_ms":1,"observed_generation":1,'
        '"instances":[{"id":"a","run":1,"phase":"flying","since":1}]}',
        "[" * 100_000,
        "\ud800",
    ],
)
def test_a_wrong_field_raises_one_error(frame: str) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(frame)


def test_unknown_is_null_never_zero() -> None:
    sample = wire.Sample(gpu="GPU-1", at_ms=1, mono_ms=1)

    frame = json.loads(wire.encode(wire.Samples(agent_run_id="r", seq=1, samples=[sample])))

    assert frame["samples"][0]["util"] is None
    assert frame["samples"][0]["power_mw"] is None


@pytest.mark.parametrize(
    ("lowest", "highest", "common"), [(1, 1, 1), (1, 9, 1), (2, 9, None), (0, 0, None)]
)
def test_the_newest_common_version_is_spoken(lowest: int, highest: int, common: int) -> None:
    assert wire.common_version(lowest, highest) == common


def test_a_signed_request_can_be_verified() -> None:
    key = Ed25519PrivateKey.generate()

    headers = wire.sign_request(key, node_id="n-1", generation=3, time_ms=1_700_000_000_000)

    assert verifies(headers, key.public_key())
