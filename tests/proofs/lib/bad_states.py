"""What the proof of bad states is written in: homes that are copies of one, answers, and the table.

A case brings about one bad state, asks for some operations, takes the bad state away, and then looks at everything as
the cluster's superuser. Only the standard library is needed, and Postgres' `psql`.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import living

# How long upkeep may take to put things right once a bad state is over: its interval is 15 seconds.
SETTLED_WITHIN_SECONDS = 40
# The lines each sandbox's table holds; what is lost is seen by them.
LINES = 3


class NotTried(Exception):
    """Something that a case needs is not on this machine."""


class Home(living.Home):
    """A state directory of its own, below a directory of its own."""

    def __init__(self, program, config=None, environment=None):
        self.program = program
        self.directory = Path(tempfile.mkdtemp(prefix="pgsb-states.", dir="/tmp"))
        self.directory.chmod(0o755)
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        self.environment = kept | {"PGSANDBOX_HOME": str(self.state)} | (environment or {})
        if config is not None:
            path = self.directory / "config.json"
            path.write_text(json.dumps(config))
            self.environment["PGSANDBOX_CONFIG"] = str(path)
        self.errors = open(self.directory / "errors.log", "ab")
        self.secrets = set()

    def copy(self, name="state", environment=None):
        """Returns another home whose state directory is a copy of this one's."""
        other = Home(self.program)
        if name != "state":
            other.environment["PGSANDBOX_HOME"] = str(other.directory / name)
        subprocess.run(["cp", "-a", str(self.state), other.environment["PGSANDBOX_HOME"]], check=True)
        other.environment |= environment or {}
        other.secrets = set(self.secrets)
        return other

    def server(self, **environment):
        kept = self.environment
        self.environment = kept | environment
        try:
            return Talk(self, self.errors)
        finally:
            self.environment = kept

    def command(self, *arguments, environment=None, within=180):
        return self.run(*arguments, environment=environment, timeout=within)

    def sql(self, text, database="pgsandbox"):
        """Returns rows as the cluster's superuser sees them."""
        environment = os.environ | {"PGPASSWORD": (self.cluster / "admin-password").read_text(), "PGCONNECT_TIMEOUT": "10"}
        done = subprocess.run(
            ["psql", "-XAtq", "-F", "\t", "-v", "ON_ERROR_STOP=1", "-U", "pgsandbox_admin", "-d", database]
            + ["-h", (self.cluster / "socket-directory").read_text(), "-p", (self.cluster / "port").read_text().strip()]
            + ["-c", text],
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(f"psql: {done.stderr}")
        return [line.split("\t") for line in done.stdout.splitlines()]

    def postmaster(self):
        return int((self.cluster / "data/postmaster.pid").read_text().split("\n")[0])

    def said(self):
        self.errors.flush()
        return (self.directory / "errors.log").read_text(errors="replace")

    def remove(self):
        """Stops whatever serves the data below this home, by its own process number, and removes everything."""
        self.errors.close()
        for file in self.directory.glob("*/postgres/postgres/*/data/postmaster.pid"):
            stop(file)
        shutil.rmtree(self.directory)


def stop(pid_file, how=signal.SIGQUIT):
    """Ends the server whose working directory is the file's, if it runs."""
    try:
        pid = int(pid_file.read_text().split("\n")[0])
        if os.stat(f"/proc/{pid}/cwd").st_ino != os.stat(pid_file.parent).st_ino:
            return
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, how)
    except (OSError, ValueError):
        return
    until = time.monotonic() + 20
    while os.path.exists(f"/proc/{pid}/cwd") and time.monotonic() < until:
        time.sleep(0.02)


class Talk(living.Server):
    """A server that may also refuse to start."""

    def __init__(self, home, errors):
        self.home = home
        try:
            super().__init__(home, errors)
        except OSError:
            pass

    def call(self, operation, arguments=None, within=None):
        """Returns the envelope and the seconds it took; the envelope is `None` if none came."""
        begun = time.monotonic()
        try:
            self.begin(operation, arguments or {})
            envelope = self.envelope(within or 200)
        except (BrokenPipeError, OSError):
            envelope = None
        return envelope, time.monotonic() - begun

    def result(self, operation, arguments=None):
        envelope, _ = self.call(operation, arguments)
        if not (envelope and envelope["ok"]):
            raise RuntimeError(f"{operation}: {envelope}")
        return envelope["result"]

    def end(self):
        """Ends the server and returns its status, `None` if it had to be killed."""
        try:
            self.process.stdin.close()
        except OSError:
            pass
        try:
            return self.process.wait(90)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None


class Table:
    """The rows of the proof, printed as they come."""

    WIDTHS = (50, 42, 38, 8, 8)

    def __init__(self):
        self.faults = []
        self.rows = 0
        self.line("bad state", "operation", "answer", "seconds", "verdict")

    def line(self, *cells):
        print("  ".join(f"{str(cell):<{width}}" for cell, width in zip(cells, self.WIDTHS)).rstrip(), flush=True)

    def row(self, state, operation, answer, seconds, fault):
        self.rows += 1
        self.line(state, operation, answer, "" if seconds is None else f"{seconds:.2f}", "holds" if not fault else "FAULT")
        if fault:
            self.faults.append(f"{state}: {operation}: {fault}")
            print(f"    {fault}", flush=True)


class Play:
    """One case: its name, what it has made, and its rows."""

    def __init__(self, table, template, state, short):
        self.table, self.template, self.state, self.short = table, template, state, short
        self.made = []

    def home(self, **how):
        home = self.template.home.copy(**how)
        self.made.append(home)
        return home

    def note(self, operation, answer, fault=None, seconds=None):
        self.table.row(self.state, operation, answer, seconds, fault)

    def expect(self, home, operation, answered, codes, within=None, retryable=None, hint=True):
        """Checks an answer: `ok` or one of the codes, in time, with the way on, and without a secret."""
        envelope, seconds = answered
        codes = [codes] if isinstance(codes, str) else codes
        if envelope is None:
            return self.note(operation, "none", f"no answer within {seconds:.0f} s", seconds)
        code = "ok" if envelope["ok"] else envelope["errors"][0]["code"]
        fault = None
        if code not in codes:
            fault = f"{code} instead of {' or '.join(codes)}: {json.dumps(envelope)[:700]}"
        elif within and seconds > within:
            fault = f"it took {seconds:.1f} s; allowed are {within} s"
        elif code != "ok":
            error = envelope["errors"][0]
            if hint and not error.get("hint"):
                fault = f"the way on is missing: {error}"
            elif retryable is not None and error["retryable"] != retryable:
                fault = f"retryable is {error['retryable']}: {error}"
        fault = fault or self.leak(home, json.dumps(envelope))
        self.note(operation, code, fault, seconds)
        return envelope

    def refused(self, home, operation, done, words, codes=(1, 2)):
        """Checks that a command failed with a sentence that names `words`."""
        said = done.stderr + done.stdout
        fault = None
        if done.returncode not in codes:
            fault = f"status {done.returncode}: {said[:700]}"
        elif missing := [word for word in words if word not in said]:
            fault = f"{missing} not said: {said[:700]}"
        fault = fault or self.leak(home, said)
        shown = next((line for line in said.splitlines() if line.strip()), "")
        self.note(operation, f"status {done.returncode}", fault)
        return shown

    def leak(self, home, text):
        if any(secret in text for secret in home.secrets):
            return "a secret is in the answer"
        return None

    def whole(self, home, kept=None, gone=(), audit=True, name="afterwards", environment=None):
        """Waits until nothing is unfinished, and compares cluster and metadata: nothing lost, nothing left."""
        kept = self.template.kept if kept is None else kept
        try:
            server = home.server(**(environment or {}))
            envelope, _ = server.call("list_databases", {"includeExpired": True})
            begun = time.monotonic()
            fault = None if envelope and envelope["ok"] and not envelope["result"]["failures"] else f"list: {envelope}"
            if not fault:
                fault = self.settled(home, begun)
            seconds = time.monotonic() - begun
            fault = fault or self.compared(home, server, kept, gone)
            server.end()
            if not fault and audit:
                done = home.command("audit", "verify", environment=environment)
                if done.returncode != 0 or "0 requests open" not in done.stdout:
                    fault = f"audit: {done.stdout}{done.stderr}"
            fault = fault or self.leak(home, home.said())
        except Exception as error:  # whatever it is, it belongs into the table
            fault, seconds = f"{type(error).__name__}: {error}", None
        self.note(name, f"{len(kept)} kept, {len(gone)} gone" if not fault else "not in order", fault, seconds)

    def settled(self, home, begun):
        unsettled = """select count(*) from (
            select id from pgsandbox.sandboxes where state in ('creating', 'deleting')
               or (state = 'ready' and expires_at < now())
            union select sandbox_id from pgsandbox.plans where state in ('running', 'undoing')) as x"""
        while int(home.sql(unsettled)[0][0]):
            if time.monotonic() - begun > SETTLED_WITHIN_SECONDS:
                return "it is not in order in time: " + str(home.sql(
                    "select b.database_name, b.state, p.state, p.attempts, p.last_error from pgsandbox.sandboxes b "
                    "left join pgsandbox.plans p on p.sandbox_id = b.id where b.state in ('creating', 'deleting')"))
            time.sleep(0.1)
        return None

    def compared(self, home, server, kept, gone):
        rows = home.sql("select id, database_name, owner_role, readonly_role from pgsandbox.sandboxes where state = 'ready'")
        databases = {name for name, in home.sql("select datname from pg_database where datname like 'pgsandbox\\_%'")}
        roles = {name for name, in home.sql(
            "select rolname from pg_roles where rolname like 'pgsandbox\\_%' and rolname not in ('pgsandbox_admin', 'pgsandbox_direct', 'pgsandbox_withheld')")}
        if databases != {row[1] for row in rows}:
            return f"databases {sorted(databases)} and rows {sorted(row[1] for row in rows)}"
        if roles != {role for row in rows for role in row[2:4]}:
            return f"roles {sorted(roles)} and rows {rows}"
        ids = {row[0] for row in rows}
        if lost := set(kept) - ids:
            return f"lost: {lost}"
        if left := set(gone) & ids:
            return f"left: {left}"
        for one in kept:
            for readonly in (False, True):
                envelope, _ = server.call("run_sql", {"databaseId": one, "sql": "select count(*) from kept", "readonly": readonly})
                if not (envelope and envelope["ok"] and envelope["result"]["resultSets"][0]["rows"] == [[str(LINES)]]):
                    return f"{one} does not answer (readonly {readonly}): {envelope}"
        return None

    def end(self):
        for home in self.made:
            home.remove()


class Template:
    """A stopped home with two sandboxes, to be copied."""

    def __init__(self, program, config=None):
        self.home = Home(program, config)
        server = self.home.server()
        self.kept = [server.result("create_database", {"nameHint": hint, "ttlMinutes": 600})["databaseId"] for hint in "ab"]
        for one in self.kept:
            server.result("run_sql", {"databaseId": one, "sql": f"create table kept as select generate_series(1, {LINES}) n"})
            for access in ("owner", "readonly"):
                answer = server.result(
                    "get_connection_string", {"databaseId": one, "includeCredentials": True, "access": access})
                self.home.secrets.add(next(
                    found.group(1) for value in answer.values() if isinstance(value, str)
                    for found in [re.search("://[^:/]+:([A-Za-z0-9_-]{40,})@", value)] if found))
        server.end()
        self.home.secrets.add((self.home.cluster / "admin-password").read_text())
        for line in (self.home.state / "master.keys").read_text().splitlines():
            if line and not line.startswith("#"):
                self.home.secrets.add(line)
        self.names = dict(self.home.sql("select id, database_name from pgsandbox.sandboxes"))
        stopped = self.home.command("local", "stop")
        if stopped.returncode != 0:
            raise RuntimeError(f"the cluster was not stopped: {stopped.stderr}")
        self.home.errors.truncate(0)
