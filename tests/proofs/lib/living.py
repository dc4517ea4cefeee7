"""The real program and its cluster, as the proofs play with them: a home, its servers, and a look at all there is.

A `Home` is a fresh state directory with a configuration; its superuser looks at the cluster through the private socket,
so that what is compared was not told by the program. `look` sees everything at one moment: databases, roles, rows,
plans, leases, sessions, files and processes. `disorder` says what of it cannot be right whatever was asked for, and
`leftovers` what should have ended with its program.

Only the standard library is needed, and Postgres' `psql`.
"""

import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# How long one answer may take.
ANSWER_SECONDS = 120
# How long a new server may take until nothing is left undone. Upkeep comes round every 15 seconds; dropping takes its time.
SETTLED_WITHIN_SECONDS = 90
# A session and a process end a moment after their client.
ENDED_WITHIN_SECONDS = 10

BASE_POLICIES = """
[[policy]]
source = "ownership"
[[policy]]
source = "statement-guard"
[[policy]]
source = "extensions"
"""

UNSETTLED = """select count(*) from (
    select id from pgsandbox.sandboxes where state in ('creating', 'deleting')
       or (state = 'ready' and expires_at < now())
    union select sandbox_id from pgsandbox.plans where state in ('running', 'undoing')) as x"""

STUCK = """select b.database_name, b.state, p.kind, p.state, p.holder, p.attempts, p.last_error from pgsandbox.sandboxes b
    left join pgsandbox.plans p on p.sandbox_id = b.id where b.state in ('creating', 'deleting')
    or p.state in ('running', 'undoing')"""

# Everything of the cluster at one moment, as one document.
LOOK = """select json_build_object(
    'databases', (select coalesce(json_object_agg(d.datname, r.rolname), '{}') from pg_database d
                  join pg_roles r on r.oid = d.datdba where d.datname like 'pgsandbox\\_%'),
    'databases_all', (select json_agg(datname order by datname) from pg_database),
    'roles', (select coalesce(json_agg(rolname order by rolname), '[]') from pg_roles
              where rolname like 'pgsandbox\\_%' and rolname not in ('pgsandbox_admin', 'pgsandbox_direct', 'pgsandbox_withheld')),
    'roles_all', (select json_agg(rolname order by rolname) from pg_roles),
    'rows', (select coalesce(json_agg(json_build_object('id', id, 'state', state, 'database', database_name,
                 'owner', owner_role, 'readonly', readonly_role, 'hint', hint, 'failure', failure,
                 'expires_at', to_char(expires_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))
                 order by created_at, id), '[]') from pgsandbox.sandboxes),
    'plans', (select coalesce(json_agg(json_build_object('sandbox', sandbox_id, 'kind', kind, 'state', state,
                 'holder', holder, 'attempts', attempts, 'last_error', last_error)), '[]')
              from pgsandbox.plans where state in ('running', 'undoing')),
    'keys', (select coalesce(json_agg(json_build_array(key, sandbox_id) order by key), '[]') from pgsandbox.idempotency),
    'leases', (select coalesce(json_agg(json_build_object('number', s.number, 'pid', s.pid, 'locked',
                   exists (select from pg_locks l where l.locktype = 'advisory' and l.granted
                           and l.objid = s.number::oid)) order by s.number), '[]') from pgsandbox.servers s),
    'locks', (select count(*) from pg_locks where locktype = 'advisory'),
    'sessions', (select coalesce(json_agg(json_build_array(pid, datname, usename, state, query)), '[]')
                 from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()),
    'prepared', (select count(*) from pg_prepared_xacts))"""


class Home:
    """A fresh state directory with its cluster, and the superuser's look at it."""

    def __init__(self, program, policies=BASE_POLICIES, prefix="pgsandbox-proof.", environment=None):
        self.program = os.path.abspath(program)
        self.directory = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
        # The cluster's user is another one where this runs as root.
        self.directory.chmod(0o755)
        file = self.directory / "policies.toml"
        file.write_text(policies)
        config = self.directory / "config.json"
        config.write_text(json.dumps({"policies": str(file), "profiles": [{"name": "local", "managedLocal": True}]}))
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        self.environment = kept | {"PGSANDBOX_HOME": str(self.state), "PGSANDBOX_CONFIG": str(config)} | (environment or {})

    @property
    def state(self):
        return self.directory / "state"

    @property
    def cluster(self):
        """The folder of the one cluster, or `None` before it was made."""
        return next((self.state / "postgres/postgres").glob("[0-9]*"), None)

    def run(self, *arguments, environment=None, timeout=ANSWER_SECONDS):
        """Runs one command of the program to its end."""
        return subprocess.run(
            [self.program, *arguments], env=self.environment | (environment or {}), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=timeout,
        )

    def query(self, sql, database="pgsandbox"):
        """Returns rows as the cluster's superuser sees them, through its private socket."""
        cluster = self.cluster
        environment = os.environ | {"PGPASSWORD": (cluster / "admin-password").read_text()}
        done = subprocess.run(
            ["psql", "-XAtq", "-F", "\t", "-v", "ON_ERROR_STOP=1", "-U", "pgsandbox_admin", "-d", database]
            + ["-h", (cluster / "socket-directory").read_text(), "-p", (cluster / "port").read_text().strip(), "-c", sql],
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(f"psql: {done.stderr}")
        return [line.split("\t") for line in done.stdout.splitlines()]

    def settle(self, within=SETTLED_WITHIN_SECONDS):
        """Waits until nothing is being made or removed any more; returns what is stuck, which is nothing if all is well."""
        until = time.monotonic() + within
        while int(self.query(UNSETTLED)[0][0]):
            if time.monotonic() > until:
                return self.query(STUCK)
            time.sleep(0.05)
        return []

    def look(self):
        """Returns everything there is at this moment: the cluster's part, the files and the processes."""
        seen = json.loads("\n".join("\t".join(row) for row in self.query(LOOK)))
        return seen | {"files": self.files(), "processes": self.processes()}

    def files(self):
        """Returns the names of the files in the state directory, those of the cluster's own data left out."""
        found = []
        for folder, folders, names in os.walk(self.state):
            below = os.path.relpath(folder, self.state)
            if os.path.basename(folder) == "data" and "postgres" in below:
                folders.clear()
                continue
            found += [os.path.normpath(os.path.join(below, name)) for name in names]
        return sorted(found)

    def processes(self):
        """Returns the programs that run for this home, those below the cluster's own server left out."""
        server = self.postmaster()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                variables = (entry / "environ").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            mine = f"PGSANDBOX_HOME={self.state}".encode() in variables
            mine = mine or any(str(self.state).encode() in word for word in words)
            if mine and int(entry.name) not in (server, os.getpid()) and parent != server:
                found.append([int(entry.name), b" ".join(words).decode(errors="replace").strip()])
        return found

    def postmaster(self):
        """Returns the process id of the cluster's server, or `None` if it does not run."""
        if self.cluster is None:
            return None
        try:
            pid = int((self.cluster / "data/postmaster.pid").read_text().split()[0])
            os.kill(pid, 0)
        except PermissionError:
            return pid
        except (OSError, ValueError, IndexError):
            return None
        return pid

    def remove(self):
        stopped = self.run("local", "stop")
        if stopped.returncode != 0:
            print(f"the cluster was not stopped: {stopped.stderr}", file=sys.stderr)
            return
        shutil.rmtree(self.directory)


def disorder(seen):
    """Returns what of a look cannot be right once everything has settled, whatever was asked for."""
    faults = []

    def check(holds, text):
        if not holds:
            faults.append(text)

    ready = [row for row in seen["rows"] if row["state"] == "ready"]
    check(all(row["state"] in ("ready", "deleted", "failed") for row in seen["rows"]),
          f"unfinished rows: {[row for row in seen['rows'] if row['state'] in ('creating', 'deleting')]}")
    check(not seen["plans"], f"open plans: {seen['plans']}")
    check(set(seen["databases"]) == {row["database"] for row in ready},
          f"databases {sorted(seen['databases'])} are not those of the ready rows {sorted(r['database'] for r in ready)}")
    wanted = {row[column] for row in ready for column in ("owner", "readonly")}
    roles = set(seen["roles"])
    check(roles == wanted, f"roles without rows {sorted(roles - wanted)}, rows without roles {sorted(wanted - roles)}")
    for row in ready:
        owner = seen["databases"].get(row["database"])
        check(owner == row["owner"], f"{row['database']} belongs to {owner}, not to {row['owner']}")
    for column in ("database", "owner", "readonly"):
        names = [row[column] for row in seen["rows"]]
        check(len(names) == len(set(names)), "a name has two owners")
    others = set(seen["databases_all"]) - set(seen["databases"]) - {"pgsandbox", "postgres", "template0", "template1"}
    check(not others, f"databases of nobody: {sorted(others)}")
    live = {row["id"] for row in ready}
    check(all(one in live or any(row["id"] == one for row in seen["rows"]) for _, one in seen["keys"]),
          f"idempotency keys of nothing: {seen['keys']}")
    check(not seen["prepared"], "a prepared transaction is left")
    temporary = [name for name in seen["files"] if re.search(r"(\.new|\.tmp|\.partial|~)$", name)]
    check(not temporary, f"temporary files: {temporary}")
    return faults


def leftovers(home):
    """Returns what is still there of programs that have all ended: sessions, locks, processes; nothing if all is well."""
    until = time.monotonic() + ENDED_WITHIN_SECONDS
    while True:
        seen = home.look()
        left = [f"{what} left: {seen[what]}" for what in ("sessions", "locks", "processes") if seen[what]]
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.1)


class Server:
    """One `pgsandbox mcp` and its client's end."""

    def __init__(self, home, log, environment=None):
        self.process = subprocess.Popen(
            [home.program, "mcp"], env=home.environment | (environment or {}),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
        )
        self.buffer = b""
        self.last_id = 0
        self.send("initialize", {"protocolVersion": "2025-11-25", "capabilities": {},
                                 "clientInfo": {"name": "proof", "version": "1"}})
        # `None` if the program has ended before it answered.
        self.greeting = self.answer()
        if self.greeting is not None:
            self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def write(self, message):
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            # The program has ended: there will be no answer, which is what the caller sees.
            pass

    def send(self, method, params):
        self.last_id += 1
        self.write({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params})

    def begin(self, operation, arguments):
        self.send("tools/call", {"name": operation, "arguments": arguments})

    def cancel(self):
        """Takes the last request back."""
        self.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": self.last_id}})

    def answer(self, within=ANSWER_SECONDS):
        """Returns the answer to the last request, or `None` if it does not come in time or the program has ended."""
        until = time.monotonic() + within
        while True:
            while b"\n" in self.buffer:
                line, self.buffer = self.buffer.split(b"\n", 1)
                message = json.loads(line)
                if message.get("id") == self.last_id and "method" not in message:
                    return message
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, until - time.monotonic()))
            more = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if not more:
                return None
            self.buffer += more

    def envelope(self, within=ANSWER_SECONDS):
        answer = self.answer(within)
        return answer and answer["result"]["structuredContent"]

    def call(self, operation, arguments):
        self.begin(operation, arguments)
        envelope = self.envelope()
        if envelope is None:
            raise RuntimeError(f"no answer to {operation}")
        return envelope

    def kill(self):
        """Kills it; returns what it had answered to the last request, if it had."""
        self.process.kill()
        last = self.envelope(5)
        self.process.wait()
        return last

    def end(self, within=ANSWER_SECONDS):
        """Lets it end by itself; returns its status, which is below 0 for a signal."""
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        return self.process.wait(within)

    def finish(self):
        status = self.end()
        if status != 0:
            raise RuntimeError(f"a server ended with status {status}")


class Command:
    """A command line that can be killed like a server."""

    def __init__(self, home, log, environment=None):
        self.home, self.log, self.process = home, log, None
        self.environment = home.environment | (environment or {})

    def begin(self, operation, _arguments):
        self.process = subprocess.Popen(
            [self.home.program, operation, "--format", "json"], env=self.environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log,
        )

    def envelope(self, within):
        try:
            out, _ = self.process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            return None
        return json.loads(out) if out else None

    def kill(self):
        self.process.kill()
        return self.envelope(5)
