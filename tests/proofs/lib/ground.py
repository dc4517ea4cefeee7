"""Where faults are played: a home with sandboxes in stock, one play under orders, and what must hold after it.

A `Ground` knows what was answered: which sandboxes are there for certain, and which lines were acknowledged. A `Play` starts
the program under orders for one point and keeps everything it said. `Ground.recover` starts it without, twice, and
compares what there is with what was said.
"""

import itertools
import json
import re
import resource
import shutil
import signal
import time
from pathlib import Path

from living import ANSWER_SECONDS, BASE_POLICIES, Home, Server, disorder, leftovers

ROOT = Path(__file__).resolve().parents[3]
POINTS = (ROOT / "src/model/fault/points.txt").read_text().split()
CODES = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/reference/errors.md").read_text(), re.M))

# How often upkeep and heartbeats come round in a play.
INTERVAL_MS = 300
# What a delayed point is delayed by, and what every deadline is shortened to meanwhile.
DELAY_MS, DEADLINE_MS = 2500, 1500
# An answer takes no longer, whatever is done to the program.
ANSWERED_WITHIN_SECONDS = 40
# A point that is reached by upkeep is reached soon after.
FIRED_WITHIN_SECONDS = 12
# Sandboxes made ahead of need in one go.
STOCK = 6
# A sandbox is usable at once, or as soon as it is told to call again.
USABLE_WITHIN_SECONDS = 20

GENEROUS = "{ burst = 1000000, per_interval = 1000000, interval_ms = 1000 }"
LIMITS = f"""
[[policy]]
source = "rate-limit"
settings = {{ impacts = {{ reads = {GENEROUS}, creates = {GENEROUS}, writes = {GENEROUS}, destroys = {GENEROUS} }} }}
"""
POLICIES = BASE_POLICIES + LIMITS + """
[[policy]]
source = "quota"
settings = { max_live = 500, max_live_group = 500, max_bytes = 1000000000000 }
"""
# One live sandbox is allowed, and more than one is there: whoever creates one was not decided on.
STRICT = POLICIES.replace("max_live = 500", "max_live = 1")

# What may lie in the state directory while nothing is being done.
KNOWN_FILES = re.compile(
    r"pgsandbox\.state|master\.keys|master\.keys\.lock|audit/((manifest|segment-[^/]*)\.jsonl|spare)|cache/key|cache/[0-9a-f]{64}\.cwasm"
    r"|servers/[0-9a-f-]{36}\.server|limits/[0-9a-f]{64}\.book|postgres/(lock|pgsandbox-state|first-cluster)"
    r"|schemas/[0-9a-f]{32}/(digests|snapshots)/(\.lock|[^/.][^/]*\.schema)"
    r"|templates/[0-9a-f]{32}/(\.lock|[^/.][^/]*\.template)"
    r"|postgres/postgres/\d+/(admin-password|port|lock|socket-directory|log/server\.log(\.1)?|run/\.s\.PGSQL\.\d+(\.lock)?)")


def no_core_dumps():
    """A crash is meant: it leaves no image of the memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


class Ground:
    """A home to play on, and what is known of it."""

    numbers = itertools.count(1)

    def __init__(self, program, stocked=True):
        self.home = Home(program, POLICIES, "pgsandbox-faults.")
        self.log = open(self.home.directory / "servers.log", "ab")
        self.orders_log = self.home.directory / "fired.log"
        self.stocked = stocked
        self.live, self.spare, self.lines = set(), [], {}
        # Whether the policies of the strict configuration were compiled before.
        self.warmed = False

    def config(self, name, policies=POLICIES, **more):
        """Writes another configuration of the same home; returns the variables that choose it."""
        file = self.home.directory / f"policies-{name}.toml"
        file.write_text(policies)
        config = {"policies": str(file), "profiles": [{"name": "local", "managedLocal": True}]} | more
        path = self.home.directory / f"config-{name}.json"
        path.write_text(json.dumps(config))
        path.chmod(0o600)
        return {"PGSANDBOX_CONFIG": str(path)}

    def clean(self, environment=None):
        """Starts a server without orders."""
        return Server(self.home, self.log, {"PGSANDBOX_TEST_INTERVAL_MS": str(INTERVAL_MS)} | (environment or {}))

    def take(self):
        """Takes a ready sandbox out of the stock."""
        if not self.spare:
            server = self.clean()
            for _ in range(STOCK):
                envelope = server.call("create_database", {"nameHint": f"stock{next(self.numbers)}"})
                made = envelope["result"]["databaseId"]
                envelope = server.call("run_sql", {"databaseId": made, "sql": "create table acked (n int)"})
                if not envelope["ok"]:
                    raise RuntimeError(f"no stock: {envelope}")
                self.spare.append(made)
                self.live.add(made)
            server.finish()
        return self.spare.pop()

    def secrets(self):
        """Returns words that no answer and no log may hold."""
        words = set()
        keys = self.home.state / "master.keys"
        if keys.exists():
            words |= {line for line in keys.read_text().splitlines() if line and not line.startswith("#")}
        if self.home.cluster and (self.home.cluster / "admin-password").exists():
            words.add((self.home.cluster / "admin-password").read_text().strip())
        return {word for word in words if word}

    def recover(self, play):
        """Starts the program again, twice; returns what does not hold."""
        faults = []
        if self.home.cluster is None and not play.makes_cluster:
            return self.recover_without_cluster(play)
        server = self.clean()
        envelope = server.greeting and server.call("list_databases", {"includeExpired": True})
        if not envelope or not envelope["ok"]:
            server.kill()
            return [f"the next start does not work: {envelope and envelope['errors']}"]
        stuck = self.home.settle(30)
        if stuck:
            faults.append(f"stuck: {stuck}")
        first = self.home.look()
        faults += disorder(first) + self.files(first)
        faults += play.truths(first)
        faults += self.use(server, play, {row["id"]: row for row in first["rows"] if row["state"] == "ready"})
        faults += self.repeat(server, play)
        server.finish()
        faults += leftovers(self.home)
        before = self.home.look()
        cleaned = self.home.run("cleanup", "--format", "json")
        answer = json.loads(cleaned.stdout) if cleaned.stdout else None
        result = (answer or {}).get("result") or {}
        if not answer or not answer["ok"] or result.get("failures") or result.get("deleted"):
            faults.append(f"the second recovery had something to do: {cleaned.stdout or cleaned.stderr}")
        after = self.home.look()
        faults += [f"the second recovery changed {what}: {before[what]} to {after[what]}"
                   for what in ("rows", "databases_all", "roles_all", "plans", "keys") if before[what] != after[what]]
        faults += disorder(after) + self.files(after)
        faults += [f"{what} left after it: {after[what]}" for what in ("sessions", "locks", "processes") if after[what]]
        verified = self.home.run("audit", "verify")
        if verified.returncode != 0 or "0 requests open" not in verified.stdout:
            faults.append(f"audit verify: {verified.stdout}{verified.stderr}")
        ready = {row["id"] for row in after["rows"] if row["state"] == "ready"}
        self.live = ready
        self.spare = [one for one in self.spare if one in ready]
        self.lines = {one: numbers for one, numbers in self.lines.items() if one in ready}
        return list(dict.fromkeys(faults))

    def leave(self, play):
        """Goes on without a look: what was touched is not known any more. Returns what was wrong by itself."""
        self.live -= play.touched
        self.spare = [one for one in self.spare if one in self.live]
        return list(play.said)

    def recover_without_cluster(self, play):
        """As `recover`, where no cluster was made."""
        faults = []
        for _ in range(2):
            done = self.home.run("doctor", "--format", "json")
            answer = json.loads(done.stdout) if done.stdout else None
            if not answer or not answer["ok"]:
                faults.append(f"doctor does not work: {done.stdout}{done.stderr}")
        verified = self.home.run("audit", "verify")
        if verified.returncode != 0 or "0 requests open" not in verified.stdout:
            faults.append(f"audit verify: {verified.stdout}{verified.stderr}")
        seen = {"files": self.home.files(), "processes": self.home.processes()}
        faults += self.files(seen) + play.truths(None)
        if seen["processes"]:
            faults.append(f"processes left: {seen['processes']}")
        return faults

    def files(self, seen):
        strange = [name for name in seen["files"] if not KNOWN_FILES.fullmatch(name)]
        if self.home.cluster:
            strange += [str(part) for part in (self.home.cluster / "data").glob("*.part*")]
        return [f"files that nobody needs: {strange}"] if strange else []

    def use(self, server, play, ready):
        """Uses the sandboxes of the play that are there, and reads the lines that were acknowledged."""
        faults = []
        for one in sorted(play.touched & set(ready)):
            until = time.monotonic() + USABLE_WITHIN_SECONDS
            while True:
                envelope = server.call("run_sql", {"databaseId": one, "sql": "select current_user"})
                if envelope["ok"] or not envelope["errors"][0]["retryable"] or time.monotonic() > until:
                    break
                time.sleep(0.2)
            rows = envelope["ok"] and envelope["result"]["resultSets"][0]["rows"]
            if rows != [[ready[one]["owner"]]]:
                faults.append(f"{one} is ready and does not let its owner in: {envelope['errors'] or rows}")
            wanted, refused = self.lines.get(one, set()), play.refused_lines.get(one, set())
            if wanted or refused:
                there = {int(row[0]) for row in self.home.query("select n from acked", ready[one]["database"])}
                if wanted - there:
                    faults.append(f"acknowledged lines {sorted(wanted - there)} are not in {one}")
                if refused & there:
                    faults.append(f"lines {sorted(refused & there)} of refused calls are in {one}")
        return faults

    def repeat(self, server, play):
        """Calls again what was said to be worth calling again."""
        faults = []
        for operation, arguments, envelope in play.heard:
            if envelope is None or envelope["ok"] or not envelope["errors"][0]["retryable"] or arguments is None:
                continue
            again = server.call(operation, arguments)
            code = None if again["ok"] else again["errors"][0]["code"]
            # What it was about may be gone by now, by its own removal, or not be what it was; what was to be made is not.
            gone = set() if operation == "create_database" else {"database_not_found", "sandbox_expired"}
            # The server that is asked now was told of no source.
            gone = gone | {"source_not_allowed"} if operation == "clone_database" else gone
            # The file was deleted at the end of the scene.
            gone = gone | {"template_not_found"} if operation == "import_template" else gone
            allowed = {None} | gone | ({"quota_exceeded"} if play.strict else set())
            if code not in allowed:
                faults.append(f"{operation} was to be called again, and then came {again['errors']}")
            if again["ok"] and operation == "create_database":
                made = again["result"]["databaseId"]
                deleted = server.call("delete_database", {"databaseId": made, "wait": True})
                if not deleted["ok"]:
                    faults.append(f"what was made at last is not deleted: {deleted['errors']}")
        return faults

    def remove(self):
        self.log.close()
        self.home.remove()

    def stop(self):
        """Stops the cluster and leaves everything for a look."""
        self.log.close()
        self.home.run("local", "stop")

    def forget(self):
        """Removes a home whose cluster was never made."""
        self.log.close()
        shutil.rmtree(self.home.directory)


class Play:
    """One run of the program under orders."""

    def __init__(self, ground, orders="", delayed=False):
        self.ground, self.orders = ground, orders
        self.heard, self.statuses, self.said = [], [], []
        self.touched, self.refused_lines, self.must_fail = set(), {}, set()
        self.strict, self.point = False, None
        self.makes_cluster = ground.stocked
        self.servers = []
        ground.orders_log.write_text("")
        self.mark = ground.log.tell() if not ground.log.closed else 0
        self.environment = {
            "PGSANDBOX_TEST_FAULTS": orders,
            "PGSANDBOX_TEST_FAULTS_LOG": str(ground.orders_log),
            "PGSANDBOX_TEST_INTERVAL_MS": str(INTERVAL_MS),
        }
        if delayed:
            self.environment["PGSANDBOX_TEST_DEADLINE_MS"] = str(DEADLINE_MS)

    def server(self, environment=None):
        server = Server(self.ground.home, self.ground.log, self.environment | (environment or {}))
        self.servers.append(server)
        return server

    def call(self, server, operation, arguments):
        """Calls and takes note; returns the result, or `None`."""
        begun = time.monotonic()
        if server.greeting is None:
            return None
        server.begin(operation, arguments)
        envelope = server.envelope(ANSWERED_WITHIN_SECONDS)
        if envelope is None and server.process.poll() is None:
            # The answer ends with the process, a moment before that can be seen.
            time.sleep(0.5)
            if server.process.poll() is None:
                self.said.append(f"no answer to {operation} within {time.monotonic() - begun:.0f} s")
        self.heard.append((operation, arguments, envelope))
        return envelope["result"] if envelope and envelope["ok"] else None

    def create(self, server, **arguments):
        hint = f"play{next(Ground.numbers)}"
        result = self.call(server, "create_database", {"nameHint": hint, "idempotencyKey": hint} | arguments)
        if result:
            self.touched.add(result["databaseId"])
        return result and result["databaseId"]

    def insert(self, server, one):
        """Writes a line that is to be there if that is what the answer says."""
        number = next(Ground.numbers)
        self.touched.add(one)
        result = self.call(server, "run_sql", {"databaseId": one, "sql": f"insert into acked values ({number})"})
        envelope = self.heard[-1][2] if self.heard else None
        if result:
            self.ground.lines.setdefault(one, set()).add(number)
        elif envelope and envelope["errors"][0]["code"] in ("audit_unavailable", "policy_not_ready", "limits_unavailable"):
            self.refused_lines.setdefault(one, set()).add(number)

    def command(self, *arguments, operation=None):
        """Runs a command to its end."""
        done = self.ground.home.run(*arguments, environment=self.environment, timeout=ANSWER_SECONDS)
        self.ground.log.write(done.stderr.encode())
        self.statuses.append(done.returncode)
        try:
            envelope = json.loads(done.stdout) if done.stdout.startswith("{") else None
        except ValueError:
            envelope = None
        if envelope and "ok" in envelope and operation:
            self.heard.append((operation, None, envelope))
        if done.returncode not in (0, -signal.SIGABRT) and not (envelope or done.stderr.strip()):
            self.said.append(f"{arguments} ended with status {done.returncode} and said nothing")
        return envelope

    def fired(self):
        """Returns whether what was ordered was done."""
        lines = self.ground.orders_log.read_text().splitlines()
        return f"!{self.point}" in lines if self.point else any(line.startswith("!") for line in lines)

    def counts(self):
        counts = {}
        for line in self.ground.orders_log.read_text().split():
            counts[line.lstrip("!")] = counts.get(line.lstrip("!"), 0) + 1
        return counts

    def await_point(self, *points):
        """Waits until upkeep has reached something, or the order was done."""
        until = time.monotonic() + FIRED_WITHIN_SECONDS
        while time.monotonic() < until and not self.fired() and any(s.process.poll() is None for s in self.servers):
            if all(point in self.counts() for point in points):
                break
            time.sleep(0.05)

    def end(self, server):
        try:
            self.statuses.append(server.end(60))
        except Exception as error:  # noqa: BLE001
            server.kill()
            self.said.append(f"a server does not end: {error}")

    def truths(self, seen):
        """Returns what of the answers is not true."""
        faults = list(self.said)
        crashed = "=crash" in self.orders and self.fired()
        for status in self.statuses:
            # 1 is a command that failed and said why, 2 a start that was refused.
            if status not in (0, 1, 2) and not (crashed and status == -signal.SIGABRT):
                faults.append(f"a process ended with status {status}")
        if crashed and -signal.SIGABRT not in self.statuses:
            faults.append("no process ended by the crash")
        text = json.dumps([envelope for _, _, envelope in self.heard])
        log = (self.ground.home.directory / "servers.log").read_bytes()[self.mark:].decode(errors="replace")
        for secret in self.ground.secrets():
            if secret in text or secret in log:
                faults.append("a secret is in an answer or a log")
        if "panicked at" in log:
            faults.append("a panic: " + log[log.index("panicked at"):][:300])
        rows = {} if seen is None else {row["id"]: row for row in seen["rows"]}
        deleted = {arguments["databaseId"] for operation, arguments, _ in self.heard
                   if operation == "delete_database" and arguments}
        for operation, arguments, envelope in self.heard:
            if envelope is None:
                if not crashed:
                    faults.append(f"no answer to {operation}, and no crash")
                continue
            if not envelope["ok"]:
                error = envelope["errors"][0]
                if error["code"] not in CODES or not error["message"] or not isinstance(error["retryable"], bool):
                    faults.append(f"{operation}: not a typed error: {error}")
            faults += self.truth(operation, arguments, envelope, rows, deleted)
        for one in self.ground.live - self.touched:
            if seen is not None and rows.get(one, {}).get("state") != "ready":
                faults.append(f"{one}, which nobody touched, is {rows.get(one, {}).get('state')}")
        return faults

    def truth(self, operation, arguments, envelope, rows, deleted):
        result, arguments = envelope.get("result"), arguments or {}
        code = None if envelope["ok"] else envelope["errors"][0]["code"]
        if operation in self.must_fail and envelope["ok"]:
            return [f"{operation} was let through: {envelope}"]
        if operation == "create_database":
            if envelope["ok"]:
                made = result["databaseId"]
                state = rows.get(made, {}).get("state")
                return [] if state == "ready" or made in deleted else [f"{made} was made and is {state}"]
            left = [row for row in rows.values() if row["hint"] == arguments.get("nameHint") and row["state"] == "ready"]
            return [f"create failed ({code}) and left {left}"] if left and arguments else []
        if operation == "delete_database" and arguments:
            state = rows.get(arguments["databaseId"], {}).get("state")
            if envelope["ok"] and state == "ready":
                return [f"{arguments['databaseId']} was deleted and is {state}"]
            if code in ("audit_unavailable", "policy_not_ready", "limits_unavailable") and state != "ready":
                return [f"the deletion of {arguments['databaseId']} was refused ({code}), and it is {state}"]
        if operation == "extend_database" and envelope["ok"]:
            row = rows.get(result["databaseId"], {})
            if row.get("state") == "ready" and row["expires_at"] != result["expiresAt"]:
                return [f"{result['databaseId']} was extended to {result['expiresAt']} and ends {row['expires_at']}"]
        return []
