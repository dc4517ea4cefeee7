"""Bad states of Postgres: stopped, killed, recovering, out of connections, read-only, out of disk, slow, half-open; for a
managed cluster and for a server that a profile names by URL."""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

from bad_homes import fill, mounted
from bad_states import Home, LINES, stop
from proxy import Proxy

CASES = []
# The longest that any answer may take while the server does not answer at all: a sign of life and a login are waited for.
DEAD_SECONDS = 45
# The longest while the server is slow or comes up again.
SLOW_SECONDS = 125
DOWN = ("postgres_connection_failed", "local_postgres_unavailable")
BIN = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), Path("/usr/bin"))


def case(state, short=False):
    def put(function):
        CASES.append((state, function, short))
        return function
    return put


def calls(server, wishes, within):
    """Asks for everything at once; returns (envelope, seconds) for each, `None` where nothing came in time."""
    ids, begun, answers = [], time.monotonic(), {}
    for operation, arguments in wishes:
        server.begin(operation, arguments)
        ids.append(server.last_id)
    last = server.last_id
    for one in ids:
        server.last_id = one
        while one not in answers:
            # `answer` passes over other ids; what it passes over is kept here
            message = read(server, begun + within)
            if message is None:
                break
            if message.get("id") in ids and "method" not in message:
                answers[message["id"]] = (message["result"]["structuredContent"], time.monotonic() - begun)
    server.last_id = last
    return [answers.get(one, (None, time.monotonic() - begun)) for one in ids]


def read(server, until):
    while b"\n" not in server.buffer:
        ready, _, _ = select.select([server.process.stdout], [], [], max(0, until - time.monotonic()))
        more = os.read(server.process.stdout.fileno(), 65536) if ready else b""
        if not more:
            return None
        server.buffer += more
    line, server.buffer = server.buffer.split(b"\n", 1)
    return json.loads(line)


def everything(one, other, victim):
    return [
        ("list_databases", {}),
        ("run_sql", {"databaseId": one, "sql": "select count(*) from kept"}),
        ("run_sql", {"databaseId": other, "sql": "select count(*) from kept", "readonly": True}),
        ("create_database", {"nameHint": "during"}),
        ("extend_database", {"databaseId": one, "ttlMinutes": 650}),
        ("cleanup_expired", {}),
        ("doctor", {}),
        ("delete_database", {"databaseId": victim}),
    ]


def ask(play, home, server, codes, within, wishes=None):
    """Asks for everything, each of which is answered with `ok` or one of `codes`, in time; a list says it of profiles."""
    kept = play.kept
    wishes = wishes or everything(kept[0], kept[1], play.victim)
    for (operation, arguments), answer in zip(wishes, calls(server, wishes, within + 60)):
        what = operation + (" read-only" if arguments.get("readonly") else "")
        envelope, seconds = answer
        if envelope and envelope["ok"] and operation == "list_databases" and envelope["result"]["failures"]:
            failed = envelope["result"]["failures"][0]
            fault = None if failed["code"] in codes and failed.get("hint") else f"{failed}"
            if seconds > within:
                fault = f"it took {seconds:.1f} s; allowed are {within} s"
            play.note(what, failed["code"] + " of a profile", fault, seconds)
            continue
        play.expect(home, what, answer, ("ok", *codes), within=within,
                    retryable=None if envelope is None or envelope["ok"] else True)


def fresh_start(play, home, codes, within):
    """Starts a new server in the bad state and asks it for a list, and it ends by itself."""
    server = home.server()
    wishes = [("list_databases", {}), ("run_sql", {"databaseId": play.kept[0], "sql": "select 1"})]
    ask(play, home, server, codes, within, wishes)
    begun = time.monotonic()
    status = server.end()
    seconds = time.monotonic() - begun
    play.note("end of a new server", f"status {status}", None if status == 0 and seconds < 40 else f"status {status}", seconds)


class Managed:
    """A case on a managed cluster: a copy of the template with one more sandbox, which is to be deleted in the bad state."""

    def __init__(self, play):
        self.home = play.home()
        self.server = self.home.server()
        play.kept = play.template.kept
        play.victim = self.server.result("create_database", {"nameHint": "victim"})["databaseId"]
        for one in play.kept:
            self.server.result("run_sql", {"databaseId": one, "sql": "select 1"})

    def superuser(self, sql):
        return self.home.sql(sql, "postgres")


@case("managed: stopped")
def managed_stopped(play):
    it = Managed(play)
    stopped = it.home.command("local", "stop")
    assert stopped.returncode == 0, stopped.stderr
    ask(play, it.home, it.server, DOWN, SLOW_SECONDS)
    it.server.end()
    play.whole(it.home, gone=[])


@case("managed: killed")
def managed_killed(play):
    it = Managed(play)
    os.kill(it.home.postmaster(), signal.SIGKILL)
    ask(play, it.home, it.server, DOWN, SLOW_SECONDS)
    it.server.end()
    play.whole(it.home)


@contextlib.contextmanager
def recovering(home):
    """Has a backend die, and holds the recovery that follows."""
    pid = home.postmaster()
    backend = int(home.sql("select pid from pg_stat_activity where backend_type = 'background writer'")[0][0])
    os.kill(backend, signal.SIGKILL)
    held = None
    until = time.monotonic() + 20
    while held is None and time.monotonic() < until:
        for entry in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                if "startup" in Path(f"/proc/{entry}/cmdline").read_text():
                    held = int(entry)
                    os.kill(held, signal.SIGSTOP)
    try:
        yield held
    finally:
        if held:
            with contextlib.suppress(ProcessLookupError):
                os.kill(held, signal.SIGCONT)


@case("managed: recovering for 4 s")
def managed_recovering(play):
    it = Managed(play)
    with recovering(it.home) as held:
        play.note("recovery is held", str(held is not None), None if held else "it was over before it could be held")
        if held:
            threading.Timer(4, lambda: os.kill(held, signal.SIGCONT)).start()
        ask(play, it.home, it.server, DOWN, SLOW_SECONDS)
    it.server.end()
    play.whole(it.home)


@case("managed: out of connections")
def managed_full(play):
    it = Managed(play)
    it.superuser("alter system set max_connections = 12")
    it.superuser("alter system set superuser_reserved_connections = 2")
    it.home.command("local", "stop")
    it.server.call("list_databases")
    sessions = hold_all(it.home)
    ask(play, it.home, it.server, ("busy", *DOWN), 60)
    fresh_start(play, it.home, ("busy",), 60)
    let_go(it.home, sessions)
    it.server.end()
    play.whole(it.home)


def let_go(home, sessions):
    """Ends sessions that were held; their backends do not notice the end of their clients by themselves."""
    for backend in family(home.postmaster())[1:]:
        with contextlib.suppress(OSError):
            if b"SELECT" in Path(f"/proc/{backend}/cmdline").read_bytes():
                os.kill(backend, signal.SIGTERM)
    for session in sessions:
        session.kill()
        session.wait()
    time.sleep(0.5)


def hold_all(home):
    """Takes every connection there is, as the superuser."""
    environment = os.environ | {"PGPASSWORD": (home.cluster / "admin-password").read_text()}
    sessions = []
    for _ in range(40):
        session = subprocess.Popen(
            ["psql", "-XAtq", "-U", "pgsandbox_admin", "-d", "postgres", "-h", (home.cluster / "socket-directory").read_text(),
             "-p", (home.cluster / "port").read_text().strip(), "-c", "select pg_sleep(600)"],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        sessions.append(session)
        time.sleep(0.05)
    time.sleep(0.5)
    return [session for session in sessions if session.poll() is None]


@case("managed: default_transaction_read_only by ALTER SYSTEM")
def managed_default_read_only(play):
    it = Managed(play)
    it.superuser("alter system set default_transaction_read_only = on")
    it.superuser("select pg_reload_conf()")
    ask(play, it.home, it.server, (), SLOW_SECONDS)
    os.environ["PGOPTIONS"] = "-c default_transaction_read_only=off"
    try:
        it.superuser("alter system reset default_transaction_read_only")
        it.superuser("select pg_reload_conf()")
    finally:
        del os.environ["PGOPTIONS"]
    it.server.end()
    play.whole(it.home, gone=[play.victim])


@case("managed: out of disk", short=True)
def managed_disk_full(play):
    home = play.home()
    data = home.cluster / "data"
    aside = home.directory / "data-aside"
    data.rename(aside)
    owner = aside.stat()
    data.mkdir(mode=0o700)
    os.chown(data, owner.st_uid, owner.st_gid)
    with mounted(data, "-t", "tmpfs", "-o", f"size=220m,mode=700,uid={owner.st_uid},gid={owner.st_gid}", "tmpfs"):
        subprocess.run(["cp", "-a", f"{aside}/.", str(data)], check=True)
        server = home.server()
        play.kept = play.template.kept
        play.victim = server.result("create_database", {"nameHint": "victim"})["databaseId"]
        filler = fill(data)
        codes = ("disk_full", *DOWN)
        ask(play, home, server, codes, SLOW_SECONDS)
        one = play.kept[0]
        play.expect(home, "run_sql, much data", server.call("run_sql", {
            "databaseId": one, "sql": "create table much as select repeat('x', 1000) from generate_series(1, 40000)"}), codes)
        filler.unlink()
        server.end()
        play.whole(home)
        home.command("local", "stop")
        for entry in data.glob("postmaster.pid"):
            stop(entry)


def family(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


@case("managed: stopped by a signal for 3 s")
def managed_slow(play):
    it = Managed(play)
    processes = family(it.home.postmaster())
    for process in processes:
        os.kill(process, signal.SIGSTOP)

    def go_on():
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
    threading.Timer(3, go_on).start()
    ask(play, it.home, it.server, (), SLOW_SECONDS)
    it.server.end()
    play.whole(it.home, gone=[play.victim])


@case("managed: stopped by a signal for good")
def managed_frozen(play):
    it = Managed(play)
    time.sleep(0.4)
    processes = family(it.home.postmaster())
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    ask(play, it.home, it.server, (*DOWN, "command_timeout", "statement_timeout", "busy"), DEAD_SECONDS)
    fresh_start(play, it.home, DOWN, DEAD_SECONDS)
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)
    it.server.end()
    play.whole(it.home)


class ByUrl:
    """A server of somebody else's, a profile that names it by URL through a proxy, and the usual sandboxes."""

    def __init__(self, play, proxied=True):
        self.directory = Path("/tmp") / f"pgsb-url.{os.getpid()}.{time.monotonic_ns() % 10**9}"
        self.directory.mkdir(mode=0o755)
        shutil.chown(self.directory, "postgres")
        self.data = self.directory / "data"
        password = self.directory / "password"
        password.write_text("a:secret/pass@word")
        shutil.chown(password, "postgres")
        self.pg("initdb", "-D", self.data, "-U", "boss", "-A", "scram-sha-256", "-N", "--pwfile", password, "-E", "UTF8", "--locale", "C")
        (self.data / "postgresql.auto.conf").write_text("wal_level = replica\nmax_wal_senders = 4\n")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.start()
        self.proxy = Proxy(self.port) if proxied else None
        self.url = f"postgresql://boss:a%3Asecret%2Fpass%40word@127.0.0.1:{self.proxy.port if proxied else self.port}/postgres?sslmode=disable"
        config = {"profiles": [{"name": "remote", "adminUrl": self.url}]}
        self.home = UrlHome(play.template.home.program, config, self)
        play.made.append(self)
        self.server = self.home.server()
        play.kept = [self.server.result("create_database", {"nameHint": hint, "ttlMinutes": 600})["databaseId"] for hint in "ab"]
        for one in play.kept:
            self.server.result("run_sql", {"databaseId": one, "sql": f"create table kept as select generate_series(1, {LINES}) n"})
        play.victim = self.server.result("create_database", {"nameHint": "victim"})["databaseId"]
        self.home.secrets |= {"a:secret/pass@word", "a%3Asecret%2Fpass%40word"}

    def pg(self, tool, *arguments):
        done = subprocess.run([str(BIN / tool), *map(str, arguments)], user="postgres", group="postgres", cwd="/",
                              capture_output=True, text=True, env={"PATH": os.environ["PATH"], "LC_ALL": "C"})
        if done.returncode != 0:
            raise RuntimeError(f"{tool}: {done.stderr}")

    def start(self, data=None, port=None):
        data = data or self.data
        options = f"-c port={port or self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c max_connections=40 -c fsync=off"
        # its output must not keep a pipe of ours open
        subprocess.run([str(BIN / "pg_ctl"), "start", "-w", "-D", str(data), "-l", str(data / "log"), "-o", options],
                       user="postgres", group="postgres", cwd="/", check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop(self, mode="fast", data=None):
        self.pg("pg_ctl", "stop", "-D", data or self.data, "-m", mode, "-w")

    def remove(self):
        if self.proxy:
            self.proxy.close()
        for data in self.directory.glob("*/postmaster.pid"):
            stop(data)
        self.home.remove()
        shutil.rmtree(self.directory)


class UrlHome(Home):
    def __init__(self, program, config, server):
        super().__init__(program, config)
        self.by_url = server

    def sql(self, text, database="postgres"):
        environment = os.environ | {"PGPASSWORD": "a:secret/pass@word", "PGCONNECT_TIMEOUT": "10"}
        database = "postgres" if database == "pgsandbox" else database
        done = subprocess.run(
            ["psql", "-XAtq", "-F", "\t", "-v", "ON_ERROR_STOP=1", "-U", "boss", "-d", database, "-h", "127.0.0.1",
             "-p", str(self.by_url.port), "-c", text], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"psql: {done.stderr}")
        return [line.split("\t") for line in done.stdout.splitlines()]

    def postmaster(self):
        return int((self.by_url.data / "postmaster.pid").read_text().split("\n")[0])


@case("by URL: stopped, then started")
def url_stopped(play):
    it = ByUrl(play)
    it.stop("immediate")
    ask(play, it.home, it.server, DOWN, DEAD_SECONDS)
    fresh_start(play, it.home, DOWN, DEAD_SECONDS)
    it.start()
    it.server.end()
    play.whole(it.home, kept=play.kept)


@case("by URL: recovering")
def url_recovering(play):
    it = ByUrl(play)
    with recovering(it.home) as held:
        play.note("recovery is held", str(held is not None), None if held else "it was over before it could be held")
        ask(play, it.home, it.server, DOWN, DEAD_SECONDS)
        fresh_start(play, it.home, DOWN, DEAD_SECONDS)
    time.sleep(2)
    it.server.end()
    play.whole(it.home, kept=play.kept)


@case("by URL: a hot standby", short=True)
def url_standby(play):
    it = ByUrl(play)
    standby = it.directory / "standby"
    passfile = it.directory / "pass"
    passfile.write_text(f"127.0.0.1:{it.port}:*:boss:a\\:secret/pass@word\n")
    passfile.chmod(0o600)
    shutil.chown(passfile, "postgres")
    it.pg("pg_basebackup", "-D", standby, "-R", "-X", "stream", "-c", "fast",
          "-d", f"host=127.0.0.1 port={it.port} user=boss passfile={passfile}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    it.start(standby, port)
    # the profile's address leads to the standby from now on, as after a fail-over that went wrong
    primary, it.proxy.server = it.proxy.server, port
    for connection in it.proxy.connections:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
    ask(play, it.home, it.server, ("server_read_only", "readonly_violation"), DEAD_SECONDS)
    fresh_start(play, it.home, ("server_read_only",), DEAD_SECONDS)
    it.proxy.server = primary
    for connection in it.proxy.connections:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
    it.stop("immediate", standby)
    it.server.end()
    play.whole(it.home, kept=play.kept)


@case("by URL: out of connections")
def url_full(play):
    it = ByUrl(play)
    environment = os.environ | {"PGPASSWORD": "a:secret/pass@word"}
    sessions = [subprocess.Popen(
        ["psql", "-XAtq", "-U", "boss", "-d", "postgres", "-h", "127.0.0.1", "-p", str(it.port), "-c", "select pg_sleep(600)"],
        env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(45)]
    time.sleep(3)
    ask(play, it.home, it.server, ("busy", *DOWN), 60)
    fresh_start(play, it.home, ("busy", *DOWN), 60)
    let_go(it.home, sessions)
    it.server.end()
    play.whole(it.home, kept=play.kept)


def half_open(mode, what):
    @case(f"by URL: half-open, {what}")
    def play_it(play):
        it = ByUrl(play)
        it.proxy.mode = mode
        codes = (*DOWN, "command_timeout", "statement_timeout", "busy")
        ask(play, it.home, it.server, codes, DEAD_SECONDS)
        fresh_start(play, it.home, codes, DEAD_SECONDS)
        it.proxy.mode = "pass"
        it.server.end()
        play.whole(it.home, kept=play.kept)
    return play_it


half_open("deaf", "what we send is lost")
half_open("dumb", "what it sends is lost")
half_open("silent", "both ways")
half_open("refuse", "closed at once")


@case("by URL: lost within a result")
def url_mid_result(play):
    it = ByUrl(play)
    one = play.kept[0]
    # connections from now on lose what comes after the login and some rows
    it.server.end()
    it.server = it.home.server()
    it.server.result("list_databases")
    it.proxy.after = 4000
    wishes = [("run_sql", {"databaseId": one, "sql": "select repeat('x', 100) from generate_series(1, 500)", "rowLimit": 500,
                           "timeoutSeconds": 5}),
              ("run_sql", {"databaseId": one, "sql": "select repeat('x', 100) from generate_series(1, 500)", "rowLimit": 500,
                           "timeoutSeconds": 5, "readonly": True})]
    ask(play, it.home, it.server, (*DOWN, "statement_timeout", "command_timeout"), 20, wishes)
    it.proxy.after = None
    it.server.end()
    play.whole(it.home, kept=play.kept)


@case("by URL: lost at a cancel")
def url_cancel(play):
    it = ByUrl(play)
    one = play.kept[0]
    it.server.begin("run_sql", {"databaseId": one, "sql": "select pg_sleep(120)", "timeoutSeconds": 3})
    time.sleep(1)
    it.proxy.mode = "silent"
    begun = time.monotonic()
    envelope = it.server.envelope(60)
    play.expect(it.home, "run_sql", (envelope, time.monotonic() - begun), ("statement_timeout", *DOWN), within=15)
    it.proxy.mode = "pass"
    it.server.end()
    play.whole(it.home, kept=play.kept)


@case("by URL: slow")
def url_slow(play):
    it = ByUrl(play)
    it.proxy.mode = "slow"
    ask(play, it.home, it.server, (), SLOW_SECONDS)
    it.proxy.mode = "pass"
    it.server.end()
    play.whole(it.home, kept=play.kept, gone=[play.victim])
