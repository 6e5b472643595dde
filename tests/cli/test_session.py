"""What all commands have in common: options, outputs, errors and how a run ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
import typer
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    OperationFailure,
    ServerSelectionTimeoutError,
)
from typer.testing import CliRunner

import mongosaver
import mongosaver.cli
from mongosaver.cli import app as app_module
from mongosaver.cli import help as help_module
from mongosaver.cli import session as session_module
from mongosaver.cli.app import app
from mongosaver.cli.redact import Redactor, for_process
from mongosaver.cli.session import (
    Code,
    Options,
    Session,
    Stop,
    brief,
    code_of,
    command,
    duration,
    explained,
    jsonable,
    many,
    option,
    variable,
)
from mongosaver.errors import SetupRefused, UsageError
from mongosaver.testing import mongo_server
from tests.cli.conftest import COMMAND, CTRL_C, environment, in_terminal

if TYPE_CHECKING:
    from tests.cli.conftest import Place, Run

PASSWORD = "p4ss:w@rd/é"
QUOTED = "p4ss%3Aw%40rd%2F%C3%A9"
AWAY = f"mongodb://ada:{QUOTED}@127.0.0.1:1/"


def parsed(group: Any = None) -> Any:
    """Returns the app as its parser sees it."""
    return typer.main.get_command(group or app)


def commands(group: Any = None, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every command with its name, also those of groups."""
    for name, each in (group or parsed()).commands.items():
        if hasattr(each, "commands"):
            yield from commands(each, f"{path}{name} ")
        else:
            yield f"{path}{name}", each


COMMANDS = dict(commands())


# --- options -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_an_environment_variable_that_the_help_shows(name: str, run: Run) -> None:
    """Each option of each command names its environment variable, derived from its own name."""
    entries = re.split(r"\n(?=  -)", run(*name.split(), "--help").out)
    shown = {entry.split()[0].strip(","): " ".join(entry.split()) for entry in entries[1:]}
    options = [each for each in COMMANDS[name].params if each.param_type_name == "option"]
    assert options
    for each in options:
        long = next(opt for opt in each.opts if opt.startswith("--"))
        assert each.envvar == variable(long)
        assert f"[env: {each.envvar}" in shown[each.opts[0]], long
        assert each.help


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_argument_says_what_it_is_for(name: str) -> None:
    """Each command has a sentence of its own, and each of its arguments."""
    assert COMMANDS[name].help
    for each in COMMANDS[name].params:
        assert each.help, each.name
        assert each.metavar or each.is_flag, each.name


def test_a_variable_stands_for_an_option(run: Run, place: Place) -> None:
    """An option from the environment does what it does on the command line."""
    place.thread("a")
    place.thread("b")
    by_options = run(
        *("delete-thread", "a", "--uri", place.uri, "--db", place.database.name),
        *("--collection", place.name, "--json", "--dry-run"),
    )
    by_variables = run(
        *("delete-thread", "a"),
        env={**place.environment, "MONGOSAVER_JSON": "1", "MONGOSAVER_DRY_RUN": "1"},
    )
    assert by_variables.out == by_options.out
    assert by_variables.json["dry_run"] is True
    assert run("delete-thread", "a", env={**place.environment, "MONGOSAVER_YES": "1"}).code == 0
    assert place.counts("a") == (0, 0, 0)


@pytest.mark.parametrize(
    ("name", "value", "arguments", "says"),
    [
        ("MONGOSAVER_KEEP_LAST", "two", ["prune", "a"], "MONGOSAVER_KEEP_LAST"),
        ("MONGOSAVER_IDLE", "soon", ["prune"], "'soon' is not a duration"),
        ("MONGOSAVER_OLDER_THAN", "1 fortnight", ["prune", "a"], "is not a duration"),
        ("MONGOSAVER_STRATEGY", "shred", ["prune", "a"], "shred"),
        ("MONGOSAVER_TIMEOUT", "0", ["ttl", "show"], "MONGOSAVER_TIMEOUT"),
        ("MONGOSAVER_YES", "perhaps", ["delete-thread", "a"], "MONGOSAVER_YES"),
    ],
)
def test_a_wrong_value_of_a_variable_is_refused(
    mongosaver: Run, name: str, value: str, arguments: list[str], says: str
) -> None:
    """A value that an option does not take is named on one line, and nothing is done."""
    done = mongosaver(*arguments, env={name: value})
    assert (done.code, done.out) == (Code.REFUSED, "")
    assert says in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30d", 30 * 86_400),
        ("12h", 43_200),
        ("90m", 5400),
        ("45s", 45),
        ("2w", 14 * 86_400),
        ("1d12h", 129_600),
        ("1.5h", 5400),
        ("3600", 3600),
        (" 0.5 ", 0.5),
        ("1D", 86_400),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    """A duration is a number of seconds, or numbers with their units."""
    assert duration(text) == timedelta(seconds=seconds)
    assert duration(duration(text)) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "d", "3x", "-3d", "3d x", "1e400", "9" * 400, "nan", "3 d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """Anything else is a wrong value of the option."""
    with pytest.raises(typer.BadParameter, match="is not a duration"):
        duration(text)


def test_durations_are_printed_as_they_are_read() -> None:
    """What is printed of a duration means the same again."""
    for seconds in (0, 1, 59, 60, 3600, 86_400, 90_061):
        assert duration(brief(timedelta(seconds=seconds))) == timedelta(seconds=seconds)
    assert [many(1, "thread"), many(2000, "thread")] == ["1 thread", "2,000 threads"]


class Kind(str, Enum):
    """An option's choices."""

    one = "one"
    two = "two"


def small_app() -> typer.Typer:
    """An app with one command of every kind of parameter."""
    small = typer.Typer(cls=help_module.Group, rich_markup_mode=None, epilog="The end.")

    @small.callback()
    def _main() -> None:
        """A small app."""

    @command(small, "all", connects=False)
    def everything(
        session: Session,
        first: Annotated[str, typer.Argument(help="One.")],
        others: Annotated[list[str] | None, typer.Argument(help="More.")] = None,
        kind: Annotated[Kind, option("--kind", help="An enum.")] = Kind.one,
        mode: Annotated[Literal["a", "b"], option("--mode", help="A literal.")] = "a",
        path: Annotated[Path | None, option("--path", help="A path.")] = None,
        count: Annotated[int, option("-n", "--count", help="A number.")] = 3,
        required: Annotated[str, option("--required", help="Needed.")] = ...,  # type: ignore[assignment]
        words: Annotated[str, option("--words", help="Told.", show_default="its own")] = "",
        secret: Annotated[str, option("--secret", help="Hidden.", hidden=True)] = "",
    ) -> None:
        """Do it all.

        In more words:

        - one
        - two
        """
        data = {"first": first, "others": others, "kind": kind, "n": count, "required": required}
        session.emit(data, lambda console: console.print(f"{data}"))

    return small


HELP = """\
Usage: small all [OPTIONS] FIRST [OTHER...]

  Do it all.

  In more words:

  - one
  - two

Arguments:
  FIRST                   One.
  OTHER                   More.

Options:
  --kind one|two          An enum. [env: MONGOSAVER_KIND; default: one]
  --mode a|b              A literal. [env: MONGOSAVER_MODE; default: a]
  --path PATH             A path. [env: MONGOSAVER_PATH]
  -n, --count N           A number. [env: MONGOSAVER_COUNT; default: 3]
  --required TEXT         Needed. [env: MONGOSAVER_REQUIRED; required]
  --words TEXT            Told. [env: MONGOSAVER_WORDS; default: its own]
  --help                  Show this text.

Output:
"""


def test_the_layout_of_a_help_text() -> None:
    """A help text has usage, description, arguments, and options by panel with their variables."""
    one = parsed(small_app()).commands["all"]
    text = help_module.render(one, "small all", width=80)
    assert text[: len(HELP)] == HELP
    assert "hidden" not in text.lower()
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_command_gets_its_arguments_and_options() -> None:
    """Values reach the function under their own names, whatever the options of all are called."""
    done = CliRunner().invoke(
        small_app(), ["all", "x", "y", "z", "--required", "r", "-n", "5", "--json"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {
        "first": "x",
        "others": ["y", "z"],
        "kind": "one",
        "n": 5,
        "required": "r",
    }


# --- the app -----------------------------------------------------------------------------------


def test_the_version(run: Run) -> None:
    """`--version` prints the package's version."""
    assert run("--version").out == f"mongosaver {mongosaver.__version__}\n"


def test_the_first_help_names_commands_and_exit_codes(run: Run) -> None:
    """`mongosaver --help` has every command with its sentence, and every exit code."""
    done = run("--help")
    assert done.code == 0
    for name in parsed().commands:
        assert re.search(rf"^  {name} +\S", done.out, re.MULTILINE), name
    for code in Code:
        assert re.search(rf"^  - {int(code)}: \w", done.out, re.MULTILINE), code


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing-like-it"], "No such command 'nothing-like-it'. See mongosaver --help."),
        (["prune", "--nothing-like-it"], "--nothing-like-it"),
        (["verif"], "Did you mean 'verify'? See mongosaver --help."),
        (["show", "-dash"], "an id that begins with a dash: mongosaver show -- -dash. See"),
        (["show", "--xyzzy"], "begins with a dash: mongosaver show -- --xyzzy. See"),
        (["ttl", "set", "-x"], "No such option: -x. See mongosaver ttl set --help."),
        (["verify", "--no-dat"], "(Possible options: --no-data). See mongosaver verify --help."),
        (["copy-thread", "a"], "TARGET"),
        (["x\x1b[31m"], "x\\x1b[31m"),
        (["ttl", "show", "x"], "See mongosaver ttl show --help."),
        ([], "See mongosaver --help."),
    ],
)
def test_a_wrong_call_is_refused_on_one_line(run: Run, arguments: list[str], says: str) -> None:
    """A call that the parser refuses says why and where the help is."""
    done = run(*arguments)
    assert (done.code, done.out) == (Code.REFUSED, "")
    assert says in done.err
    assert done.err.startswith("mongosaver: ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_the_command_says_what_to_install(missing: str) -> None:
    """Without Typer or Rich the command names the extra, and the package itself still works."""
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import mongosaver, mongosaver.cli; sys.exit(mongosaver.cli.main(['threads']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(r"mongosaver: .*pip install 'mongosaver\[cli\]'\n", done.stderr)


def test_a_module_that_is_missing_otherwise_is_no_matter_of_extras(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another module's absence is not blamed on the extra."""

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name="mongosaver.cli.oops")

    monkeypatch.setattr(mongosaver.cli.importlib, "import_module", missing)
    with pytest.raises(ModuleNotFoundError):
        mongosaver.cli.main([])


def test_the_arguments_are_the_process_s_by_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`main()` reads the command line."""
    monkeypatch.setattr(sys, "argv", ["mongosaver", "--version"])
    assert mongosaver.cli.main() == 0
    assert capsys.readouterr().out == f"mongosaver {mongosaver.__version__}\n"


# --- connection --------------------------------------------------------------------------------


def test_the_connection_string_is_required(run: Run) -> None:
    """Without a connection string the command names the variable and the option."""
    done = run("ttl", "show")
    assert done.code == Code.REFUSED
    assert "MONGOSAVER_URI" in done.err
    assert "--uri" in done.err


def test_database_and_collection_have_defaults(bare: pytest.MonkeyPatch) -> None:
    """The database is the option's, the connection string's or `langgraph`, in this order."""
    for options, name in [
        (Options(uri="mongodb://127.0.0.1:1/"), "langgraph.checkpoints"),
        (Options(uri="mongodb://127.0.0.1:1/app"), "app.checkpoints"),
        (Options(uri="mongodb://127.0.0.1:1/app", db="own", collection="cp"), "own.cp"),
    ]:
        with Session(options) as session:
            assert session.collection.full_name == name


@pytest.mark.parametrize(
    ("uri", "timeout", "seconds"),
    [
        ("mongodb://127.0.0.1:1/", None, 10),
        ("mongodb://127.0.0.1:1/", 2.5, 2.5),
        ("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=3000", None, 3),
        ("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=3000", 2.5, 2.5),
    ],
)
def test_how_long_a_server_is_looked_for(
    bare: pytest.MonkeyPatch, uri: str, timeout: float | None, seconds: float
) -> None:
    """The option decides, then the connection string; ten seconds by default."""
    with Session(Options(uri=uri, timeout=timeout)) as session:
        assert session.client.options.server_selection_timeout == seconds


def test_a_server_that_is_away(run: Run) -> None:
    """An unreachable host is named on one line, soon and without the password."""
    start = time.monotonic()
    done = run("ttl", "show", env={"MONGOSAVER_URI": AWAY, "MONGOSAVER_TIMEOUT": "0.2"})
    assert time.monotonic() - start < 5
    assert (done.code, done.out) == (Code.FAILED, "")
    assert "no server answers: 127.0.0.1:1" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "login", ["ada:pa/ss", "ada:12/ss", "ada:pa/s:s", "ada:pa@ss", "a:d:a", "ad/a:pass"]
)
def test_a_login_that_is_not_escaped(run: Run, login: str) -> None:
    """Whatever character of a login misleads the parser, what helps is said."""
    done = run("ttl", "show", env={"MONGOSAVER_URI": f"mongodb://{login}@127.0.0.1:1/x"})
    assert (done.code, done.out) == (Code.REFUSED, "")
    assert "have to be percent-escaped, as %2F, %3A and %40" in done.err
    assert done.err.count("\n") == 1


def test_what_else_is_wrong_with_a_connection_string_is_no_matter_of_escapes(run: Run) -> None:
    """A slash behind the hosts, and an address without a login, are not blamed."""
    for uri in ("mongodb://127.0.0.1:x/", "mongodb://127.0.0.1:x/y?appName=a@b"):
        done = run("ttl", "show", env={"MONGOSAVER_URI": uri})
        assert done.code != Code.DONE
        assert "escaped, as" not in done.err


def test_an_option_of_the_connection_string_that_nobody_knows(place: Place) -> None:
    """What PyMongo warns of is a line like any other, and the command goes on."""
    uri = place.uri + ("&" if "?" in place.uri else "/?") + "foo=bar"
    call = [*COMMAND, "ttl", "show", "--json"]
    env = environment({**place.environment, "MONGOSAVER_URI": uri})
    done = subprocess.run(call, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch("mongosaver: connection string: Unknown option.*\n", done.stderr)
    env["MONGOSAVER_QUIET"] = "1"
    done = subprocess.run(call, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


SECRETS = (PASSWORD, QUOTED, "w@rd", "p4ss")


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        ["ttl", "show", "--uri", AWAY, "--timeout", "0.1"],
        ["ttl", "show", AWAY],
        ["prune", "--idle", AWAY],
        [AWAY],
        ["ttl", "show", f"--uri{AWAY}"],
        ["prune", f"--uri{AWAY}"],
        ["prune", f"-u{AWAY}"],
        ["ttl", "show", "--uri", "mongodb://ada:12/p4ss@127.0.0.1:1/"],
        ["ttl", "show", "--uri", "mongodb://ada:p4ss:w@rd@127.0.0.1:1/"],
        ["ttl", "show", "--uri", "mongodb://ada:p4ss/w@rd@127.0.0.1:x/"],
        ["ttl", "show", "--uri", f"mongodb://ada:{QUOTED}@127.0.0.1:1/?maxPoolSize=many"],
        ["ttl", "show", "--uri", f"mongodb://ada:{QUOTED}@127.0.0.1:1/a.b.c", "--timeout", "0.1"],
        ["ttl", "show", "--uri", "mongodb+srv://ada:p4ssw0rd@nowhere.invalid/", "--timeout", "0.5"],
        ["ttl", "show", "--uri", AWAY, "--db", "a b", "--timeout", "0.1"],
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_password_is_ever_shown(run: Run, arguments: list[str], debug: bool) -> None:
    """Whatever is wrong with a connection string or its place, its password is not printed."""
    done = run(*arguments, *(["--debug"] if debug else []))
    assert done.code in (Code.FAILED, Code.REFUSED)
    assert done.err
    for secret in SECRETS:
        assert secret not in done.err + done.out


def test_a_wrong_password_is_not_shown(run: Run) -> None:
    """A server that refuses a login is quoted, without the password; so is a right one's user."""
    with mongo_server("standalone", auth=True) as server:
        wrong = re.sub("root:[^@]*@", f"root:{QUOTED}@", server.uri)
        for extra in ([], ["--debug"]):
            done = run("ttl", "show", *extra, env={"MONGOSAVER_URI": wrong})
            assert done.code == Code.FAILED
            assert "Authentication failed" in done.err
            for secret in SECRETS:
                assert secret not in done.err + done.out
        right = server.uri.partition(":")[2].partition("root:")[2].partition("@")[0]
        done = run("ttl", "show", "--debug", env={"MONGOSAVER_URI": server.uri})
        assert done.code == 0
        assert right not in done.err + done.out


def test_what_the_redactor_knows() -> None:
    """Secrets are hidden as they are, decoded, in strings that nobody announced, and in options."""
    hide = for_process(
        ["--uri", f"mongodb+srv://u:{QUOTED}@h/?tlsCertificateKeyFilePassword=k3y&a=b"],
        {"MONGOSAVER_URI": "mongodb://x:ab@h", "LANGGRAPH_AES_KEY": "0123456789abcdef"},
    )
    assert hide(f"{PASSWORD} and {QUOTED}") == "*** and ***"
    assert hide("key k3y, aes 0123456789abcdef") == "key ***, aes ***"
    assert hide("an ab in cabs") == "an *** in cabs"  # a short one hides no other word
    assert hide("at mongodb://v:other@h/?x=1") == "at mongodb://v:***@h/?x=1"
    assert hide("?tlsCertificateKeyFilePassword=other&z=1") == (
        "?tlsCertificateKeyFilePassword=***&z=1"
    )
    assert Redactor()("nothing to hide") == "nothing to hide"


# --- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (UsageError("wrong call"), "wrong call", Code.REFUSED),
        (SetupRefused("two\n  lines"), "two lines", Code.FAILED),
        (ValueError(), "ValueError", Code.FAILED),
        (
            ConfigurationError("bad option"),
            "the connection string does not work: bad option",
            Code.REFUSED,
        ),
        (
            OperationFailure(
                "x", 13, {"errmsg": 'not authorized on app to execute command { find: "c", a: 1 }'}
            ),
            (
                "the user of this connection may not run 'find' on app.c; docs/how-to/deploy.md has"
                " the role that an operator needs"
            ),
            Code.FAILED,
        ),
        (
            OperationFailure(
                "x", 13, {"errmsg": "not authorized on admin to execute command { hello: 1 }"}
            ),
            (
                "the user of this connection may not run 'hello' in database admin;"
                " docs/how-to/deploy.md has the role that an operator needs"
            ),
            Code.FAILED,
        ),
        (
            OperationFailure(
                "x", 18, {"errmsg": "Authentication failed.", "codeName": "AuthenticationFailed"}
            ),
            (
                "the server refuses: Authentication failed; check user, password and authSource in"
                " the connection string"
            ),
            Code.FAILED,
        ),
        (
            UsageError("keep_last must be a number from 1 on, got 0"),
            "--keep-last must be a number from 1 on, got 0",
            Code.REFUSED,
        ),
        (
            UsageError("older_than must be at least 10 minutes, got 1"),
            "--older-than must be at least 10 minutes, got 1",
            Code.REFUSED,
        ),
        (
            OperationFailure(
                "x", 26, {"errmsg": "ns  not found.", "codeName": "NamespaceNotFound"}
            ),
            "the server refuses: ns not found (NamespaceNotFound)",
            Code.FAILED,
        ),
        (OperationFailure("odd", 7), "the server refuses: odd (7)", Code.FAILED),
        (
            BulkWriteError({"writeErrors": [{"errmsg": "E11000 duplicate"}]}),
            "the server refuses a write: E11000 duplicate",
            Code.FAILED,
        ),
        (
            ServerSelectionTimeoutError("h:1: refused (configured timeouts: x), Timeout: 10s, T"),
            (
                "no server answers: h:1: refused. Is the address right, and the server up and"
                " reachable from here? --timeout says how long to look for it."
            ),
            Code.FAILED,
        ),
    ],
)
def test_errors_become_one_line(error: Exception, line: str, code: Code) -> None:
    """An error is told in one line, and its code says whether the call was wrong."""
    assert explained(error) == line
    assert code_of(error) == code


@contextmanager
def a_command(function: Any, **options: Any) -> Iterator[None]:
    """Has a command `zz-test` for a while, which does what a function does with its session."""
    before = list(app.registered_commands)

    def body(session: Session) -> None:
        """Do what a test wants."""
        function(session)

    command(app, "zz-test", connects=False, **options)(body)
    try:
        yield
    finally:
        app.registered_commands[:] = before


def raising(error: BaseException) -> Any:
    """Returns a command that raises."""

    def body(session: Session) -> None:
        raise error

    return body


def test_a_command_may_stop_with_a_code(run: Run) -> None:
    """`Stop` ends a command with its code, and with its message if there is one."""
    with a_command(raising(Stop(Code.FOUND))):
        done = run("zz-test")
        assert (done.code, done.out, done.err) == (3, "", "")
    with a_command(raising(Stop(Code.FAILED, "no such\x1b[31m thread"))):
        done = run("zz-test")
        assert (done.code, done.err) == (1, "mongosaver: no such\\x1b[31m thread\n")
    with a_command(raising(typer.Exit(3))):
        assert run("zz-test").code == 3


def test_a_traceback_is_for_who_asks(run: Run) -> None:
    """An expected error has no traceback without `--debug`."""
    with a_command(raising(SetupRefused("refused"))):
        assert run("zz-test").err == "mongosaver: refused\n"
        assert "Traceback" in run("zz-test", "--debug").err


def test_messages_of_anybody_are_shown_without_secrets(run: Run) -> None:
    """Whoever put a password into a message, notes and errors do not have it."""

    def body(session: Session) -> None:
        session.note(f"going to {AWAY}")
        raise SetupRefused(f"{PASSWORD} is refused at {AWAY}")

    with a_command(body):
        for extra in ([], ["--debug"]):
            done = run("zz-test", *extra, env={"MONGOSAVER_URI": AWAY})
            assert "mongosaver: *** is refused at mongodb://ada:***@127.0.0.1:1/\n" in done.err
            for secret in SECRETS:
                assert secret not in done.err


def test_what_nobody_expected_is_shown_without_secrets(run: Run) -> None:
    """A bug is a failure with a traceback, in which no password stands either."""
    with a_command(raising(KeyError(f"no {AWAY}"))):
        done = run("zz-test", env={"MONGOSAVER_URI": AWAY})
        assert done.code == Code.FAILED
        assert done.err.startswith("Traceback")
        assert "KeyError" in done.err
        for secret in SECRETS:
            assert secret not in done.err


def test_a_parameter_may_be_refused_in_the_command(run: Run) -> None:
    """What Typer raises from inside a command is a wrong call like any other."""
    with a_command(raising(typer.BadParameter("not like this"))):
        done = run("zz-test")
        assert done.code == Code.REFUSED
        assert "not like this" in done.err


def test_an_interrupted_command_says_how_to_go_on(run: Run) -> None:
    """Ctrl-C ends with 130 and with what the command said last about going on."""
    with a_command(raising(KeyboardInterrupt())):
        done = run("zz-test")
        assert done.code == Code.INTERRUPTED
        assert done.err == "mongosaver: interrupted\n"

    def body(session: Session) -> None:
        session.way_on = "Go on with: mongosaver zz-test --after x"
        raise KeyboardInterrupt

    with a_command(body):
        assert run("zz-test").err == (
            "mongosaver: interrupted. Go on with: mongosaver zz-test --after x\n"
        )


def test_an_interruption_outside_a_command_is_one_too(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C before a command has begun ends with 130 as well."""

    def interrupted(_: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(app_module.typer.main, "get_command", interrupted)
    done = run("--help")
    assert (done.code, done.err) == (130, "mongosaver: interrupted\n")


def test_an_interruption_while_the_command_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C while modules are imported is one line as well, and code 130."""

    def interrupted(_: str) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(mongosaver.cli.importlib, "import_module", interrupted)
    assert mongosaver.cli.main([]) == Code.INTERRUPTED
    assert capsys.readouterr() == ("", "mongosaver: interrupted\n")


def test_sigterm_is_like_ctrl_c(run: Run) -> None:
    """A job that is stopped by SIGTERM ends as by Ctrl-C, and the handler is put back."""
    before = signal.getsignal(signal.SIGTERM)

    def body(session: Session) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    with a_command(body):
        assert run("zz-test").code == Code.INTERRUPTED
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_command_runs_in_any_thread(bare: pytest.MonkeyPatch) -> None:
    """Where no signal can be handled the command works without."""
    codes = []
    thread = threading.Thread(target=lambda: codes.append(mongosaver.cli.main(["--version"])))
    thread.start()
    thread.join()
    assert codes == [0]


# --- output ------------------------------------------------------------------------------------


def test_json_has_only_what_json_has() -> None:
    """Times are ISO 8601, bytes their number, keys texts, and everything else its text."""

    @dataclass
    class Row:
        at: datetime
        size: bytes

    moment = datetime(2026, 2, 3, 4, 5, tzinfo=timezone.utc)
    value = {
        1: Row(moment, b"abc"),
        "list": (1, 2.5, None, True, {"x"}, frozenset()),
        "odd": [float("inf"), float("nan"), timedelta(minutes=1), Kind.two, 2 + 1j],
        "day": moment.date(),
        "view": memoryview(b"ab"),
    }
    assert json.loads(json.dumps(jsonable(value), allow_nan=False)) == {
        "1": {"at": "2026-02-03T04:05:00+00:00", "size": {"bytes": 3}},
        "list": [1, 2.5, None, True, ["x"], []],
        "odd": ["inf", "nan", 60.0, "two", "(2+1j)"],
        "day": "2026-02-03",
        "view": {"bytes": 2},
    }


def test_data_goes_to_standard_output_and_the_rest_to_standard_error(run: Run) -> None:
    """A pipe carries data only; `--quiet` leaves errors."""

    def body(session: Session) -> None:
        session.note("a note")
        session.emit({"a": "é[bold]"}, lambda console: console.print("é[bold] :smile: 12"))

    with a_command(body):
        done = run("zz-test")
        assert (done.out, done.err) == ("é[bold] :smile: 12\n", "mongosaver: a note\n")
        done = run("zz-test", "--json", "--quiet")
        assert (done.json, done.err) == ({"a": "é[bold]"}, "")


def test_nothing_is_cut_where_no_terminal_is(run: Run) -> None:
    """Wide tables and long lines are whole in a pipe."""
    from rich.table import Table

    def body(session: Session) -> None:
        table = Table("id", "text")
        table.add_row("x" * 300, "y" * 300)
        session.emit([], lambda console: console.print(table))

    with a_command(body):
        out = run("zz-test", env={"COLUMNS": "40"}).out
        assert "x" * 300 in out
        assert "y" * 300 in out


COLOURS = """
import sys
from rich.text import Text
from mongosaver.cli.app import app, run
from mongosaver.cli.session import command

@command(app, "zz-test", connects=False)
def body(session):
    session.emit([], lambda console: console.print(Text("red", style="bold red")))

sys.exit(run(["zz-test", *sys.argv[1:]]))
"""


@pytest.mark.parametrize(
    ("arguments", "env", "coloured"),
    [
        ([], {}, True),
        (["--no-color"], {}, False),
        ([], {"NO_COLOR": "1"}, False),
        ([], {"NO_COLOR": ""}, True),
        ([], {"MONGOSAVER_NO_COLOR": "1"}, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(
    arguments: list[str], env: dict[str, str], coloured: bool
) -> None:
    """A terminal gets colours, unless NO_COLOR or `--no-color` says otherwise."""
    done = in_terminal(*arguments, env=env, command=[sys.executable, "-c", COLOURS])
    assert done.code == 0, done.screen
    assert "red" in done.screen
    assert ("\x1b[" in done.screen) is coloured


def test_an_output_of_another_encoding() -> None:
    """What an output's encoding lacks is shown as an escape, and JSON stays JSON."""
    code = (
        "import sys\nfrom mongosaver.cli.app import app, run\n"
        "from mongosaver.cli.session import command\n"
        "@command(app, 'zz-test', connects=False)\n"
        "def body(session):\n"
        "    session.emit({'a': 'é☃'}, lambda console: console.print('é☃'))\n"
        "sys.exit(run(['zz-test', *sys.argv[1:]]))\n"
    )
    for arguments, out in (
        ([], b"\xe9\\u2603\n"),
        (["--json"], b'{\n  "a": "\\u00e9\\u2603"\n}\n'),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=environment({"PYTHONIOENCODING": "latin-1"}),
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, out), done.stderr


BROKEN = """
import sys
from mongosaver.cli.app import app, run
from mongosaver.cli.session import command

@command(app, "zz-test", connects=False)
def body(session):
    def human(console):
        for number in range(50_000):
            console.print(f"line {number}")
    session.emit([{"line": number} for number in range(50_000)], human)

sys.exit(run(["zz-test", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_reader_that_goes_away_is_no_error(arguments: list[str], unbuffered: str) -> None:
    """`| head` ends the command quietly, whether Python buffers or not."""
    process = subprocess.Popen(
        [sys.executable, "-c", BROKEN, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment({"PYTHONUNBUFFERED": unbuffered}),
    )
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(30), said) == (Code.UNREAD, b"")


@pytest.mark.parametrize("arguments", [["--help"], ["threads", "--help"]])
def test_a_help_text_that_nobody_reads_is_no_error(arguments: list[str]) -> None:
    """A reader that is gone before the help text is printed gets nothing, quietly."""
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run(
        [*COMMAND, *arguments],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=environment(),
        check=False,
    )
    os.close(theirs)
    assert (done.returncode, done.stderr) == (Code.UNREAD, b"")


# --- asking ------------------------------------------------------------------------------------

ASKING = """
import sys
from mongosaver.cli.app import app, run
from mongosaver.cli.session import command

@command(app, "zz-test", connects=False, writes=True)
def body(session):
    session.confirm("Really?")
    session.emit([], lambda console: console.print("done it"))

sys.exit(run(["zz-test", *sys.argv[1:]]))
"""


@pytest.mark.parametrize(
    ("typed", "code"), [("y\n", 0), ("Yes\n", 0), ("n\n", 2), ("\n", 2), ("\x04", 2)]
)
def test_a_terminal_is_asked(typed: str, code: int) -> None:
    """At a terminal a yes goes on, and anything else does nothing."""
    done = in_terminal(command=[sys.executable, "-c", ASKING], typed={"Really? [y/N] ": typed})
    assert done.code == code, done.screen
    assert ("done it" in done.screen) == (code == 0)
    assert ("nothing was done" in done.screen) == (code == 2)


def test_an_interrupted_question() -> None:
    """Ctrl-C at a question is an interruption, and nothing is done."""
    done = in_terminal(command=[sys.executable, "-c", ASKING], typed={"Really? [y/N] ": CTRL_C})
    assert done.code == Code.INTERRUPTED, done.screen
    assert "interrupted" in done.screen
    assert "done it" not in done.screen


def test_nobody_to_ask(run: Run) -> None:
    """Without a terminal a question needs `--yes`; under `--dry-run` there is none."""

    def body(session: Session) -> None:
        session.confirm("Really?")
        session.emit({"done": True}, lambda console: console.print("done it"))

    with a_command(body, writes=True):
        done = run("zz-test", stdin="y\n")
        assert (done.code, done.out) == (Code.REFUSED, "")
        assert "give --yes" in done.err
        assert run("zz-test", "--yes").out == "done it\n"
        assert run("zz-test", "--dry-run", "--json").json == {
            "done": True,
            "dry_run": True,
            "commands": [],
        }


# --- progress ----------------------------------------------------------------------------------


def working(session: Session) -> None:
    """Does something in four steps."""
    with session.progress("working", 4) as bar:
        bar.update(total=5, text="still\x1b working")
        for step in range(5):
            bar.update(completed=step + 1)
        bar.update()


def test_progress_without_a_terminal_is_lines(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log gets a line now and then, with rate and remaining time where the total is known."""
    with a_command(working):
        assert run("zz-test").err == ""  # it was over before there was anything to say
        monkeypatch.setattr(session_module._Lines, "EVERY", 0.0)
        lines = run("zz-test").err.splitlines()
        assert len(lines) == 5
        assert re.fullmatch(
            r"mongosaver: still\\x1b working: 3 of 5, [\d,]+/s, \d+s left", lines[2]
        )
        assert run("zz-test", "--quiet").err == ""

    def endless(session: Session) -> None:
        with session.progress("counting") as bar:
            bar.update(completed=0)

    with a_command(endless):
        assert run("zz-test").err == "mongosaver: counting: 0, 0/s\n"


PROGRESS = """
import sys, time
from mongosaver.cli.app import app, run
from mongosaver.cli.session import command

@command(app, "zz-test", connects=False)
def body(session):
    with session.progress("working", 2) as bar:
        bar.update(completed=1, text="half [bold]way")
        time.sleep(0.3)
        bar.update(completed=2)

sys.exit(run(["zz-test"]))
"""


def test_progress_at_a_terminal_is_a_bar() -> None:
    """A terminal gets a bar with counts, rate and times."""
    done = in_terminal(command=[sys.executable, "-c", PROGRESS])
    assert done.code == 0
    assert "half [bold]way" in done.screen
    assert "2/2" in done.screen
    assert re.search(r"\d/s", done.screen)
    assert re.search(r"0:00:0\d", done.screen)


# --- as a process ------------------------------------------------------------------------------


def test_the_entry_point(place: Place) -> None:
    """The installed command and `python -m mongosaver.cli` are the same."""
    script = Path(sys.executable).with_name("mongosaver")
    for command_line in ([str(script)], COMMAND):
        done = subprocess.run(
            [*command_line, "ttl", "show", "--json"],
            env=environment(place.environment),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["checkpoints"] == 0


def test_a_name_that_nobody_knows() -> None:
    """A host of `mongodb+srv` that does not exist is an error of one line."""
    done = subprocess.run(
        [*COMMAND, "ttl", "show", "--timeout", "0.5"],
        env=environment({"MONGOSAVER_URI": "mongodb+srv://u:hunter2@nowhere.invalid/"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (1, 2)
    assert "hunter2" not in done.stderr
    assert done.stderr.count("\n") == 1
