"""What people and scripts see of `corral`."""

import io
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from portal.cli import config, tables
from tests.cli.conftest import Api

ID = "0195b1a0-0000-7000-8000-000000000001"
INSTANCE: dict[str, Any] = {
    "id": ID, "name": "train", "state": "QUEUED", "state_words": "Queued", "queue_position": 3,
    "estimate": {"low_seconds": 60, "high_seconds": 240, "words": "In about 4 min"},
    "reason": "Waiting for 1 more H100 on one machine.",
    "sooner": ["With 1 GPU it would start now."],
    "flavor": "h100-2", "image": "pytorch", "team_name": "Vision", "member_name": "Ann",
    "price_per_hour": {"amount": "4.98", "currency": "USD"}, "cost": None, "node_name": None,
    "since": "2026-03-02T09:00:00Z", "stop_at": None,
}  # fmt: skip
REFUSAL = {
    "error": {
        "code": "quota_exceeded", "message": "This needs 2 GPUs, 1 left.",
        "help": "Stop an instance of this team.", "details": {"left": 1000},
    }
}  # fmt: skip
TEAMS = {"results": [{"id": "t1", "slug": "vision", "is_mine": True}], "next": None}
LAUNCH = ("launch", "train", "--flavor", "h100-2", "--image", "pytorch")
Run = Any


def test_a_launch_says_where_it_stands(api: Api, corral: Run):
    api.will("GET", "teams", (200, TEAMS))
    api.will("POST", "instances", (201, INSTANCE))

    code, out, err = corral(
        *LAUNCH, "--env", "A=b=c", "--stop-after", "2", "--", "python", "-m", "x"
    )

    assert (code, err) == (0, "")
    assert f"train  {ID}" in out
    assert "Queued, position 3, In about 4 min: Waiting for 1 more H100" in out
    _method, _path, headers, body = api.asked[-1]
    assert headers["Authorization"] == "Bearer corral_12345678_secret"
    assert len(headers["Idempotency-Key"]) == 36
    assert (body["team"], body["env"]) == ("t1", {"A": "b=c"})
    assert body["command"] == ["python", "-m", "x"]
    assert body["stop_at"].endswith("+00:00")


def test_a_retry_after_a_broken_line_carries_the_same_key(api: Api, corral: Run):
    api.will("POST", "instances", (0, None), (502, "<html>bad gateway</html>"), (201, INSTANCE))

    code, out, _err = corral(*LAUNCH, "--team", "vision", "--key", "my-key")

    assert (code, ID in out) == (0, True)
    assert [headers["Idempotency-Key"] for _m, _p, headers, _b in api.asked] == ["my-key"] * 3
    assert len({json.dumps(body) for _m, _p, _h, body in api.asked}) == 1


def test_no_answer_is_exit_code_3_and_tells_how_to_repeat(api: Api, corral: Run):
    api.will("POST", "instances", (0, None))

    code, out, err = corral(*LAUNCH, "--team", "vision", "--key", "my-key")

    assert (code, out) == (3, "")
    assert "does not answer" in err
    assert "--key my-key" in err
    assert len(api.asked) == 4


def test_a_time_out_is_retried_with_the_same_key(home: Path, monkeypatch: pytest.MonkeyPatch):
    import socket
    import threading

    from portal.cli.__main__ import main

    silent, keys = socket.create_server(("127.0.0.1", 0)), []
    lines: list[socket.socket] = []

    def listen() -> None:
        for _try in range(4):
            line, _peer = silent.accept()
            lines.append(line)
            text = line.recv(65536).decode()
            keys.append(text.lower().split("idempotency-key: ")[1].split("\r\n")[0])

    threading.Thread(target=listen, daemon=True).start()
    monkeypatch.setenv("CORRAL_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
    monkeypatch.setenv("CORRAL_TOKEN", "x")

    code = main([*LAUNCH, "--team", "vision", "--timeout", "0.2"])

    assert code == 3
    assert len(keys) == 4
    assert len(set(keys)) == 1
    for line in [*lines, silent]:
        line.close()


def test_a_refusal_prints_the_sentence_and_the_help(api: Api, corral: Run):
    api.will("POST", "instances", (409, REFUSAL))

    code, out, err = corral(*LAUNCH, "--team", "vision")

    assert (code, out) == (1, "")
    assert err.splitlines() == [
        "corral: This needs 2 GPUs, 1 left.",
        "        Stop an instance of this team.",
    ]
    assert len(api.asked) == 1


def test_a_refusal_of_fields_names_them_and_json_has_it_all(api: Api, corral: Run):
    error = {"code": "invalid", "message": "Some fields are not right.", "help": "",
             "details": {"name": ["Too long."]}}  # fmt: skip
    api.will("POST", "instances", (400, {"error": error}))

    code, out, err = corral(*LAUNCH, "--team", "vision", "--json")

    assert code == 1
    assert json.loads(out) == {"error": error}
    assert "name: Too long." in err


def test_a_503_of_the_portal_is_a_refusal_and_of_a_proxy_none(api: Api, corral: Run):
    silent = {"error": {"code": "node_silent", "message": "The node is silent.", "help": "",
                        "details": {}}}  # fmt: skip
    api.will("GET", f"instances/{ID}", (200, INSTANCE))
    api.will("GET", f"instances/{ID}/logs", (503, silent))
    refused = corral("logs", ID)
    api.will("GET", f"instances/{ID}/logs", (503, "down"))
    unreachable = corral("logs", ID)

    assert (refused[0], unreachable[0]) == (1, 3)
    assert "The node is silent." in refused[2]
    assert "not a Corral portal" in unreachable[2]


def test_what_is_typed_wrongly_is_exit_code_2(api: Api, corral: Run):
    two = [{"id": str(n), "slug": f"team-{n}", "is_mine": True} for n in range(2)]
    api.will("GET", "teams", (200, {"results": two, "next": None}))
    api.will("GET", "instances", (200, {"results": [], "next": None}))

    for arguments in (
        (),
        ("fly",),
        ("launch", "train"),
        LAUNCH,
        (*LAUNCH, "--team", "x", "--env", "A"),
        ("show", "nobody"),
        ("cost", "--by", "moon"),
    ):
        code, _out, err = corral(*arguments)
        assert (code, bool(err)) == (2, True), arguments
    assert not [asked for asked in api.asked if asked[0] == "POST"]
    assert "team-0, team-1" in corral(*LAUNCH)[2]


def test_without_a_token_it_says_how_to_get_one(home: Path, capsys: Any):
    from portal.cli.__main__ import main

    assert main(["ls"]) == 2
    assert "corral login" in capsys.readouterr().err


def test_ls_lists_every_page_and_sends_the_token_only_home(api: Api, corral: Run):
    gone = INSTANCE | {"name": "old", "state": "TERMINATED", "state_words": "Terminated"}
    second = {"results": [INSTANCE | {"name": "second"}, gone], "next": None}
    elsewhere = "http://elsewhere.example/api/v1/instances?cursor=abc"
    api.will("GET", "instances", (200, {"results": [INSTANCE], "next": elsewhere}), (200, second))

    code, out, _err = corral("ls", "--state", "queued")

    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["NAME", "train", "second", "old"]
    assert "Queued (3)" in out
    assert "4.98 USD" in out
    assert api.asked[0][1].endswith("instances?state=QUEUED")
    assert "cursor=abc" in api.asked[1][1]
    assert "state=QUEUED" in api.asked[1][1]


def test_ls_leaves_out_what_ended_for_good(api: Api, corral: Run):
    gone = INSTANCE | {"name": "old", "state": "TERMINATED"}
    api.will("GET", "instances", (200, {"results": [gone], "next": None}))

    assert corral("ls")[1] == "No instances.\n"
    assert json.loads(corral("ls", "--json")[1]) == []
    assert "old" in corral("ls", "--all")[1]


def test_show_finds_by_name_and_by_id(api: Api, corral: Run):
    gone = INSTANCE | {"id": "x", "state": "TERMINATED"}
    api.will("GET", "instances", (200, {"results": [INSTANCE, gone], "next": None}))
    api.will("GET", f"instances/{ID}", (200, INSTANCE))

    by_name, by_id = corral("show", "train"), corral("show", ID)

    assert by_name == by_id
    assert "Launched by" in by_id[1]
    assert "With 1 GPU it would start now." in by_id[1]
    assert json.loads(corral("show", ID, "--json")[1]) == INSTANCE


def test_an_ambiguous_name_touches_nothing(api: Api, corral: Run):
    other = INSTANCE | {"id": "0195b1a0-0000-7000-8000-000000000002", "team_name": "Speech"}
    api.will("GET", "instances", (200, {"results": [INSTANCE, other], "next": None}))

    code, _out, err = corral("rm", "train")

    assert code == 2
    assert "Vision" in err
    assert "Speech" in err
    assert {asked[0] for asked in api.asked} == {"GET"}


@pytest.mark.parametrize(
    ("command", "verb"), [("stop", "stop"), ("start", "start"), ("rm", "terminate")]
)
def test_stop_start_and_rm_act_on_each(api: Api, corral: Run, command: str, verb: str):
    api.will("GET", f"instances/{ID}", (200, INSTANCE))
    done = INSTANCE | {"queue_position": None, "estimate": None, "reason": "As asked."}
    api.will("POST", f"instances/{ID}/{verb}", (200, done))

    code, out, _err = corral(command, ID, ID)

    assert (code, out) == (0, "train  Queued: As asked.\n" * 2)
    assert [asked[0] for asked in api.asked] == ["GET", "GET", "POST", "POST"]


def test_wait_follows_until_it_runs_or_failed(api: Api, corral: Run):
    running = INSTANCE | {"state": "RUNNING", "state_words": "Running", "queue_position": None,
                          "estimate": None, "reason": ""}  # fmt: skip
    failed = running | {"state": "FAILED", "state_words": "Failed", "reason": "No such image."}
    api.will("POST", "instances", (201, INSTANCE))
    api.will("GET", f"instances/{ID}", (200, INSTANCE), (200, running))
    good = corral(*LAUNCH, "--team", "vision", "--wait")
    api.will("GET", f"instances/{ID}", (200, failed))
    bad = corral(*LAUNCH, "--team", "vision", "--wait")

    assert good[0] == 0
    assert good[1].splitlines()[-1] == "Running"
    assert good[2].count("position 3") == 1
    assert bad[0] == 1
    assert "Failed: No such image." in bad[1]


def test_logs_are_printed_as_they_are(api: Api, corral: Run):
    api.will("GET", f"instances/{ID}", (200, INSTANCE))
    api.will("GET", f"instances/{ID}/logs", (200, {"text": "epoch 1\nepoch 2\n"}))

    assert corral("logs", ID, "--tail", "2") == (0, "epoch 1\nepoch 2\n", "")
    assert api.asked[-1][1].endswith("logs?tail=2")


def test_cost_adds_up(api: Api, corral: Run):
    row = {"team": {"id": "1", "name": "Vision"}, "member": None, "instance": None, "day": None,
           "flavor": None, "milliseconds": 5_405_000,
           "cost": {"amount": "3.738", "currency": "USD"}}  # fmt: skip
    report = {"start": "2026-03-01T00:00:00Z", "end": "2026-03-02T00:00:00Z", "results": [row],
              "milliseconds": 5_405_000, "next": None,
              "total": {"amount": "3.74", "currency": "USD"}}  # fmt: skip
    api.will("GET", "usage", (200, report))

    code, out, _err = corral("cost", "--by", "team", "--start", "2026-03-01T00:00:00Z")

    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert lines[0][0] == "2026-03-01"
    assert lines[2] == ["Vision", "1:30:05", "3.738", "USD"]
    assert lines[3] == ["Total", "1:30:05", "3.74", "USD"]
    assert "group_by=team" in api.asked[0][1]


def test_quota_shows_what_is_left(api: Api, corral: Run):
    line = {"team_name": None, "member_name": None, "limit_milli_gpus": 4000,
            "used_milli_gpus": 250, "left_milli_gpus": 3750}  # fmt: skip
    free = line | {"team_name": "Vision", "limit_milli_gpus": None, "left_milli_gpus": None}
    api.will("GET", "quotas", (200, {"results": [line, free], "next": None}))

    _code, out, _err = corral("quota")

    assert out.splitlines()[1].split() == ["Organization", "4", "0.25", "3.75"]
    assert out.splitlines()[2].split() == ["Vision", "no", "limit", "0.25", "no", "limit"]


def test_login_tries_the_token_and_keeps_it_for_its_owner_alone(
    api: Api, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    from portal.cli.__main__ import main

    api.will("GET", "organizations", (200, {"results": [{"name": "Acme"}], "next": None}))
    monkeypatch.setattr("sys.stdin", io.StringIO("corral_12345678_secret\n"))

    assert main(["login", "--url", f"{api.url}/"]) == 0

    out = capsys.readouterr().out
    assert "Acme" in out
    assert "secret" not in out
    file = home / "corral" / "config.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert config.load() == config.Config(api.url, "corral_12345678_secret")
    assert list(file.parent.iterdir()) == [file]


def test_login_with_a_bad_token_keeps_nothing(api: Api, home: Path):
    from portal.cli.__main__ import main

    error = {"code": "token_unknown", "message": "Not known.", "help": "", "details": {}}
    api.will("GET", "organizations", (401, {"error": error}))

    assert main(["login", "--url", api.url, "--token", "x"]) == 1
    assert not config.path().exists()


def test_a_saved_token_is_not_sent_to_another_portal(home: Path, monkeypatch: pytest.MonkeyPatch):
    config.save(config.Config("https://one.example", "secret"))
    monkeypatch.setenv("CORRAL_URL", "https://two.example")

    assert config.load() == config.Config("https://two.example", "")


def test_a_damaged_file_is_as_none(home: Path):
    config.path().parent.mkdir(parents=True)
    config.path().write_text("{")

    assert config.load() == config.Config()


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "http://"])
def test_an_address_that_is_none_is_exit_code_3(home: Path, url: str, capsys: Any):
    from portal.cli.__main__ import main

    assert main(["login", "--url", url, "--token", "x"]) == 3
    assert capsys.readouterr().err


@pytest.mark.parametrize(
    ("exact", "shown"),
    [
        ("0.015857150000", "0.0159 USD"),
        ("3.738", "3.738 USD"),
        ("12.00", "12.00 USD"),
        ("250", "250 USD"),
        ("0.00005", "0.0001 USD"),
    ],
)
def test_a_cost_is_shown_with_few_digits(exact: str, shown: str):
    assert tables.cost({"amount": exact, "currency": "USD"}) == shown


def test_columns_line_up_and_obey_no_escape_sequences():
    text = tables.table(["A", "B"], [["深度", "x"], ["ab\x1b[31m", "y"]])

    assert text.splitlines()[1] == "深度    x"
    assert "\x1b" not in text


def test_the_language_of_the_terminal_is_asked_for(
    api: Api, corral: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    api.will("GET", "quotas", (200, {"results": [], "next": None}))

    corral("quota")

    assert api.asked[0][2]["Accept-Language"] == "zh-hans"


def test_it_imports_neither_django_nor_the_rest_of_the_portal():
    import subprocess
    import sys

    code = "import portal.cli.__main__, sys; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        cwd=Path(__file__).resolve().parents[2],
    ).stdout.split()  # fmt: skip

    assert not [name for name in loaded if name.split(".")[0] in {"django", "celery", "scheduler"}]
    assert {n for n in loaded if n.startswith("portal.")} <= {
        f"portal.cli{part}" for part in ("", ".__main__", ".client", ".commands", ".config",
                                         ".language", ".tables")
    }  # fmt: skip
