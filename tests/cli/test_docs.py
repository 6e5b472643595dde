"""The reference of the command is the command's own text."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from mongosaver.testing import mongo_server


def _load() -> Any:
    # By its file: any package of that name may be installed.
    path = Path(__file__).parents[2] / "docs" / "cli_reference.py"
    spec = importlib.util.spec_from_file_location("cli_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cli_reference = _load()
PAGE = cli_reference.PAGE.read_text(encoding="utf-8") if cli_reference.PAGE.exists() else ""
COMMANDS = dict(cli_reference.commands())
OPERATE = cli_reference.PAGE.parents[1] / "how-to" / "operate.md"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_reference_has_the_help_of_every_command(name: str) -> None:
    """The page has each command's help as it is now; `python docs/cli_reference.py` renews it."""
    assert cli_reference.section(name, COMMANDS[name]) in PAGE


def test_the_reference_has_no_other_commands() -> None:
    """A command that is gone is gone from the page, and the order is the command's."""
    assert re.findall(r"^## mongosaver ?(.*)$", PAGE, re.MULTILINE) == list(COMMANDS)


def test_the_reference_has_samples_of_the_readers() -> None:
    """Each command that is to have sample output has it, without an address of this machine."""
    assert set(cli_reference.SAMPLES) <= set(COMMANDS)
    for lines in cli_reference.SAMPLES.values():
        for line in lines:
            assert f"$ mongosaver {line}\n" in PAGE
    assert "127.0.0.1" not in PAGE
    assert "Traceback" not in PAGE


def test_the_samples_work() -> None:
    """Every sample runs on the sample database, and fails nowhere."""
    shown = cli_reference.samples()
    assert shown.keys() == cli_reference.SAMPLES.keys()
    for name, text in shown.items():
        assert "\nmongosaver: no " not in text, name
        assert "$ echo $?" not in text, text
        assert not re.search(r"\d+\.\d+\.\d+\.\d+:\d+", text), text


def test_what_the_tour_calls_exists() -> None:
    """Each command and option in the tour for operators is one of the command."""
    text = OPERATE.read_text(encoding="utf-8")
    calls = re.findall(r"(?:^|[`|] ?)mongosaver ([a-z][^\n`|#]*)", text, re.MULTILINE)
    assert len(calls) > 15
    for call in calls:
        words = call.split()
        name = " ".join(words[:2]) if words[0] == "ttl" else words[0]
        options = {opt for each in COMMANDS[name].params for opt in each.opts}
        for word in words:
            assert not word.startswith("--") or word in options, call


def test_a_sample_that_fails_shows_its_code() -> None:
    """The exit code of a sample stands below it unless it is 0."""
    with mongo_server("standalone") as server:
        where = {"MONGOSAVER_URI": server.uri}
        text = cli_reference.printed("show nobody", where)
    assert text.startswith("$ mongosaver show nobody\nmongosaver: thread 'nobody': no checkpoint")
    assert text.endswith("\n$ echo $?\n1")
