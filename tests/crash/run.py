#!/usr/bin/env python3
"""Kills the program with SIGKILL at random moments and shows that the next start finds everything in order.

    tests/crash/run.py PROGRAM [KILLS] [SEED]

Servers on one fresh state directory are killed while they create, extend, delete and clean up; now and then several at
once, and with or without another one that lives on. After every few kills a new server is started, left alone until it
has done its upkeep, and then the cluster and the metadata are compared by a superuser of the cluster, from outside:

- every database and role with our prefix has a row, and every ready row its database and both roles;
- nothing is being made or removed any more, no plan is open, no name has two owners, no session is left;
- what was answered is true: made is there and lets its owner in, deleted is gone, extended has the time it was given;
- one idempotency key never made two sandboxes;
- the audit log verifies, and no request in it is open;
- the quota is exact: several servers at once fill it up to its last place and no further.

Prints the seed, each moment and each inventory. Exit status: 0 if all held, 1 if not, 2 if it could not be tried.
Only the standard library is needed, and Postgres' `psql`.
"""

import os
import random
import re
import shutil
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "proofs/lib"))

from living import ANSWER_SECONDS, BASE_POLICIES, SETTLED_WITHIN_SECONDS, Command, Home, Server, disorder, leftovers  # noqa: E402

# Live sandboxes that the policy allows.
QUOTA = 10
# Sandboxes that are there between the kills, so that there is something to extend, delete and expire.
STOCK = 5
# Kills between two inventories.
KILLS_PER_INVENTORY = 20
# Servers killed in one go.
VICTIMS_MAX = 6
# Kills fall into this many times the usual length of the operation, so that some come after its answer.
SPREAD = 1.25
# `first-create` is the first call of its server; the others come after another call, when everything is loaded and connected.
OPERATIONS = ["create", "create", "create", "first-create", "delete", "delete-wait", "extend", "cleanup", "cleanup-cli"]

POLICIES = f"""{BASE_POLICIES}
[[policy]]
source = "quota"
settings = {{ max_live = {QUOTA}, max_live_group = {QUOTA} }}
"""


class Trial:
    """Everything that was asked for and answered, and what must hold of it."""

    def __init__(self, home, seed, log):
        self.home, self.log = home, log
        self.random = random.Random(seed)
        self.kills = 0
        self.answered = 0
        self.keys = 0
        self.open_keys = []
        # What is known of sandboxes, by id.
        self.live, self.kept, self.gone, self.times = set(), set(), set(), {}
        self.faults = []
        self.settled = []
        self.length = {}

    def check(self, holds, text):
        if not holds:
            self.faults.append(text)
            print(f"  FAULT: {text}", flush=True)

    def client(self, kind):
        """Returns who is to be killed, ready to be called."""
        if kind == "cleanup-cli":
            return Command(self.home, self.log)
        server = Server(self.home, self.log)
        if kind != "first-create":
            self.check(server.call("list_databases", {})["ok"], "list_databases failed")
        return server

    def request(self, kind):
        """Returns an operation with its arguments; what it is about is uncertain from now on."""
        if kind in ("create", "first-create"):
            self.keys += 1
            arguments = {"nameHint": f"k{self.keys}", "idempotencyKey": f"key-{self.keys}", "ttlMinutes": 60}
            return "create_database", arguments
        if kind in ("cleanup", "cleanup-cli"):
            expired = [self.pick() for _ in range(min(2, len(self.live)))]
            names = ", ".join(f"'{one}'" for one in expired if one)
            if names:
                self.home.query(f"update pgsandbox.sandboxes set expires_at = now() - interval '1 s' where id in ({names})")
            self.gone.update(one for one in expired if one)
            return "cleanup" if kind == "cleanup-cli" else "cleanup_expired", {}
        target = self.pick()
        if target is None:
            return self.request("create")
        if kind == "extend":
            # Nothing else is done with it until the next inventory: it is there, whatever became of the call.
            self.kept.add(target)
            return "extend_database", {"databaseId": target, "ttlMinutes": self.random.randint(61, 1000)}
        return "delete_database", {"databaseId": target, "wait": kind == "delete-wait"}

    def pick(self):
        if not self.live:
            return None
        target = self.random.choice(sorted(self.live))
        self.live.discard(target)
        self.times.pop(target, None)
        return target

    def heard(self, operation, arguments, envelope):
        """Takes note of an answer, or of none."""
        if envelope is None:
            if operation == "create_database":
                self.open_keys.append(arguments)
            return
        result = envelope.get("result")
        if not envelope["ok"]:
            code = envelope["errors"][0]["code"]
            # Two at once may be after one sandbox, and the quota may be used up.
            expected = {"database_not_found", "sandbox_expired", "quota_exceeded", "busy"}
            self.check(code in expected, f"{operation} {arguments}: {envelope['errors']}")
        elif operation == "create_database":
            self.live.add(result["databaseId"])
        elif operation == "extend_database":
            self.times[result["databaseId"]] = result["expiresAt"]
        elif operation == "delete_database":
            self.gone.add(result["databaseId"])

    def calibrate(self):
        """Measures how long each operation usually takes, and leaves a stock."""
        for kind in dict.fromkeys(OPERATIONS):
            lengths = []
            for _ in range(3):
                self.fill(STOCK)
                client = self.client(kind)
                operation, arguments = self.request(kind)
                begun = time.monotonic()
                client.begin(operation, arguments)
                envelope = client.envelope(ANSWER_SECONDS)
                lengths.append(time.monotonic() - begun)
                if isinstance(client, Server):
                    self.heard(operation, arguments, envelope)
                    client.finish()
                self.live, self.kept = self.live | self.kept, set()
            self.length[kind] = statistics.median(lengths)
        print("usual lengths: " + ", ".join(f"{kind} {1000 * t:.0f} ms" for kind, t in self.length.items()))

    def fill(self, count):
        if len(self.live) >= count:
            return
        server = Server(self.home, self.log)
        while len(self.live) < count:
            envelope = server.call("create_database", {"nameHint": "stock", "ttlMinutes": 60})
            if not envelope["ok"]:
                # What nobody has heard of counts as well.
                self.check(envelope["errors"][0]["code"] == "quota_exceeded", f"stock: {envelope['errors']}")
                break
            self.live.add(envelope["result"]["databaseId"])
        server.finish()

    def round(self):
        """Kills one to six servers, each in the middle of something, while another one lives or does not."""
        self.fill(STOCK)
        witness = Server(self.home, self.log) if self.random.random() < 0.5 else None
        if witness:
            witness.begin("list_databases", {})
        kinds = [self.random.choice(OPERATIONS) for _ in range(self.random.randint(1, VICTIMS_MAX))]
        with ThreadPoolExecutor() as pool:
            clients = list(pool.map(self.client, kinds))
        victims = []
        for client, kind in zip(clients, kinds):
            operation, arguments = self.request(kind)
            delay = self.random.uniform(0, SPREAD * self.length[kind])
            victims.append((client, kind, operation, arguments, delay))
        begun = {}
        for client, _, operation, arguments, _ in victims:
            client.begin(operation, arguments)
            begun[client] = time.monotonic()
        said = []
        for client, kind, operation, arguments, delay in sorted(victims, key=lambda v: begun[v[0]] + v[4]):
            time.sleep(max(0, begun[client] + delay - time.monotonic()))
            at = time.monotonic() - begun[client]
            envelope = client.kill()
            self.kills += 1
            self.answered += envelope is not None
            if not isinstance(client, Command):
                self.heard(operation, arguments, envelope)
            said.append(f"{kind} at {1000 * at:.1f} ms{' (answered)' if envelope else ''}")
        print(f"  {'with' if witness else 'without'} a witness: " + ", ".join(said), flush=True)
        if witness:
            witness.envelope()
            witness.finish()

    def inventory(self):
        """Starts a new server, waits for its upkeep, and looks at everything."""
        server = Server(self.home, self.log)
        begun = time.monotonic()
        envelope = server.call("list_databases", {"includeExpired": True})
        self.check(envelope["ok"], f"list_databases: {envelope['errors']}")
        stuck = self.home.settle(SETTLED_WITHIN_SECONDS)
        took = time.monotonic() - begun
        self.settled.append(took)
        self.check(not stuck, f"{len(stuck)} sandboxes are stuck: {stuck}")
        self.compare(server)
        self.repeat_keys(server)
        self.fill_quota(server)
        server.finish()
        for left in leftovers(self.home):
            self.check(False, left)
        verified = self.home.run("audit", "verify")
        self.check(verified.returncode == 0 and "0 requests open" in verified.stdout,
                   f"audit verify: {verified.stdout}{verified.stderr}")
        return took, verified.stdout.splitlines()[0] if verified.stdout else ""

    def compare(self, server):
        """Compares cluster and metadata, and both with what was answered."""
        seen = self.home.look()
        for fault in disorder(seen):
            self.check(False, fault)
        rows = seen["rows"]
        ready = {row["id"]: row for row in rows if row["state"] == "ready"}
        state = {row["id"]: row["state"] for row in rows}
        for one in sorted(self.live | self.kept):
            self.check(one in ready, f"{one} was made and is {state.get(one)}")
        for one in sorted(self.gone):
            self.check(state.get(one) not in ("ready", "creating"), f"{one} was deleted and is {state.get(one)}")
        for one, expires_at in self.times.items():
            self.check(one in ready and ready[one]["expires_at"] == expires_at, f"{one} was extended to {expires_at}: {ready.get(one)}")
        for one in sorted(ready):
            envelope = server.call("run_sql", {"databaseId": one, "sql": "select current_user"})
            rows_back = envelope["ok"] and envelope["result"]["resultSets"][0]["rows"]
            self.check(rows_back == [[ready[one]["owner"]]], f"{one} does not let its owner in: {envelope}")
        self.live, self.kept, self.gone, self.times = set(ready), set(), set(), {}

    def repeat_keys(self, server):
        """Calls again what was not answered: with the same key, no second sandbox is made."""
        for arguments in self.open_keys:
            if len(self.live) >= QUOTA - 1:
                break
            first, again = (server.call("create_database", arguments) for _ in range(2))
            self.check(first["ok"] and again["ok"], f"{arguments}: {first['errors']}{again['errors']}")
            if not (first["ok"] and again["ok"]):
                continue
            made = first["result"]["databaseId"]
            self.check(again["result"]["databaseId"] == made, f"{arguments} made two sandboxes")
            self.live.add(made)
            count = self.home.query("select count(*) from pgsandbox.sandboxes where state = 'ready' "
                                    f"and hint = '{arguments['nameHint']}'")[0][0]
            self.check(count == "1", f"{arguments} made {count} sandboxes")
        self.open_keys = []

    def fill_quota(self, server):
        """Fills the quota from several servers at once, and makes room again."""
        servers = [server, Server(self.home, self.log), Server(self.home, self.log)]
        full = 0
        while full < len(servers):
            full = 0
            for one in servers:
                one.begin("create_database", {"nameHint": "quota", "ttlMinutes": 60})
            for envelope in [one.envelope() for one in servers]:
                if envelope["ok"]:
                    self.live.add(envelope["result"]["databaseId"])
                else:
                    full += 1
                    code = envelope["errors"][0]["code"]
                    self.check(code == "quota_exceeded", f"over the quota comes {envelope['errors']}")
            if len(self.live) > QUOTA:
                break
        count = int(self.home.query("select count(*) from pgsandbox.sandboxes where state in ('creating', 'ready')")[0][0])
        self.check(count == QUOTA and len(self.live) == QUOTA, f"{count} sandboxes live, {len(self.live)} were made; allowed are {QUOTA}")
        for one in sorted(self.live)[: max(0, len(self.live) - STOCK)]:
            envelope = server.call("delete_database", {"databaseId": one, "wait": True})
            self.check(envelope["ok"] and envelope["result"]["deleted"], f"delete {one}: {envelope}")
            self.live.discard(one)
        for one in servers[1:]:
            one.finish()


def main():
    if not 2 <= len(sys.argv) <= 4 or not all(re.fullmatch("[0-9]+", word) for word in sys.argv[2:]):
        print(__doc__, file=sys.stderr)
        return 2
    program = shutil.which(sys.argv[1])
    if program is None or shutil.which("psql") is None:
        print("neither the program nor psql may be missing", file=sys.stderr)
        return 2
    kills = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}, {kills} kills", flush=True)
    home = Home(program, POLICIES, "pgsandbox-crash.")
    with open(home.directory / "servers.log", "wb") as log:
        trial = Trial(home, seed, log)
        kept = True
        try:
            trial.calibrate()
            while trial.kills < kills:
                until = min(kills, trial.kills + KILLS_PER_INVENTORY)
                while trial.kills < until:
                    trial.round()
                took, audit = trial.inventory()
                print(f"{trial.kills} kills, in order after {took:.1f} s, {len(trial.faults)} faults; audit: {audit}", flush=True)
            kept = bool(trial.faults)
        finally:
            if kept:
                print(f"kept for a look: {home.directory}", file=sys.stderr)
                home.run("local", "stop")
            else:
                home.remove()
    print(f"seed {seed}: {trial.kills} kills ({trial.answered} after the answer), {len(trial.settled)} inventories, "
          f"in order after {statistics.median(trial.settled):.1f} s (median), {max(trial.settled):.1f} s (longest), "
          f"{len(trial.faults)} faults")
    return 1 if trial.faults else 0


if __name__ == "__main__":
    sys.exit(main())
