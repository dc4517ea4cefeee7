"""Schedules as data, how they are played, what may be left after them, and how a failing one is made smaller."""

import json
import os
import random
import select
import shutil
import signal
import subprocess
import time

import living

OWNERS = ("ann", "bob")
# Live sandboxes that the policy allows to each owner.
QUOTA = 3
POLICIES = living.BASE_POLICIES + f"""
[[policy]]
source = "quota"
settings = {{ max_live = {QUOTA}, max_live_group = {QUOTA} }}
"""
# Answers after which it is not known what was done: the server, or our way to it, was lost in the middle.
UNCERTAIN = {"postgres_connection_failed", "local_postgres_unavailable", "command_timeout", "statement_timeout", "busy"}
ANSWER_SECONDS = 100


# ---------------------------------------------------------------------------------------------------------- generation

def make(seed, steps, planted=False):
    """Makes a schedule. Operations of one step touch different sandboxes, but for creates under one key."""
    rng = random.Random(seed)
    schedule, slots = [], []
    for number in range(steps):
        step = {"n": number, "ops": [], "kill": None, "end": None, "rotate": False, "plant": None}
        touched = set()
        for _ in range(rng.randint(1, 4)):
            op = operation(rng, number, slots, touched)
            if op:
                step["ops"].append(op)
        if rng.random() < 0.45:
            step["kill"] = {"server": rng.randrange(2), "after_ms": rng.randrange(0, 400)}
        if rng.random() < 0.12:
            step["end"] = {"signal": rng.choice(["QUIT", "INT", "KILL"]), "after_ms": rng.randrange(0, 300)}
        step["rotate"] = rng.random() < 0.1
        schedule.append(step)
    if planted:
        made = [step["n"] for step in schedule if any(op["do"] == "create" for op in step["ops"])]
        at = rng.choice(made[: max(1, len(made) // 2)])
        victim = next(op["slot"] for op in schedule[at]["ops"] if op["do"] == "create")
        plant = {"n": steps, "ops": [], "kill": None, "end": None, "rotate": False, "plant": victim}
        schedule.insert(min(at + 1 + rng.randrange(3), len(schedule)), plant)
    return schedule


def operation(rng, number, slots, touched):
    do = rng.choices(["create", "again", "delete", "extend", "write", "read", "expire", "cleanup", "list", "foreign"],
                     [30, 6, 12, 8, 14, 6, 5, 4, 4, 5])[0]
    if do == "create":
        owner = rng.randrange(2)
        slot = f"{number}-{len(slots)}"
        key = f"key-{slot}" if rng.random() < 0.5 else None
        slots.append((slot, owner, key))
        touched.add(slot)
        return {"do": "create", "server": owner, "slot": slot, "key": key, "ttl": rng.randint(60, 900)}
    if do in ("cleanup", "list"):
        return {"do": do, "server": rng.randrange(2)}
    if do == "again":
        keyed = [one for one in slots if one[2]]
        if not keyed:
            return None
        slot, owner, key = rng.choice(keyed)
        if slot in touched:
            return None
        touched.add(slot)
        return {"do": "again", "server": owner, "slot": slot, "key": key}
    free = [one for one in slots if one[0] not in touched]
    if not free:
        return None
    slot, owner, _ = rng.choice(free)
    touched.add(slot)
    op = {"do": do, "server": owner, "slot": slot}
    if do == "foreign":
        op["server"] = 1 - owner
        op["what"] = rng.choice(["run_sql", "delete_database", "extend_database", "get_connection_string"])
    if do == "delete":
        op["wait"] = rng.random() < 0.5
    if do == "extend":
        op["ttl"] = rng.randint(61, 1000)
    if do == "write":
        op["value"] = rng.randrange(1 << 30)
    return op


def kept_of(schedule, keep):
    """Returns the part of a schedule that `--keep` names."""
    if keep is None:
        return schedule
    wanted = {}
    for word in keep.split(","):
        number, _, op = word.partition(":")
        wanted.setdefault(int(number), []).append(int(op) if op else None)
    part = []
    for step in schedule:
        if step["n"] not in wanted:
            continue
        ops = wanted[step["n"]]
        if None not in ops:
            step = step | {"ops": [step["ops"][index] for index in ops], "kept": ops}
        part.append(step)
    return part


def shown(schedule):
    words = []
    for step in schedule:
        words += [f"{step['n']}:{index}" for index in step["kept"]] if step.get("kept") else [str(step["n"])]
    return ",".join(words)


# ------------------------------------------------------------------------------------------------------------- playing

class Ground:
    """A home that was set up once, whose copies the schedules are played on."""

    def __init__(self, program):
        self.home = living.Home(program, POLICIES, prefix="pgsb-sched.")
        self.home.run("list-databases")
        stopped = self.home.run("local", "stop")
        if stopped.returncode != 0:
            raise RuntimeError(stopped.stderr)

    def copy(self):
        home = living.Home(self.home.program, POLICIES, prefix="pgsb-sched.")
        subprocess.run(["cp", "-a", str(self.home.state), str(home.state)], check=True)
        return home

    def remove(self):
        self.home.remove()


class Slot:
    """What may be true of one sandbox."""

    def __init__(self, slot, owner):
        self.slot, self.owner = slot, owner
        self.id = None
        # of absent, live, gone
        self.may = {"absent"}
        self.key = None
        self.arguments = None
        self.expired = False
        # `None` is any
        self.until = None
        self.must, self.maybe = set(), set()

    def has(self, *words):
        return bool(self.may & set(words))


class Outcome:
    def __init__(self):
        self.faults, self.settled = [], 0.0
        self.counts = dict.fromkeys(("steps", "asked", "answered", "refused", "kills", "ends", "rotations"), 0)

    def check(self, holds, text):
        if not holds:
            self.faults.append(text)


class Client:
    """One server and what is in flight on it."""

    def __init__(self, home, log, owner):
        self.server = living.Server(home, log, {"PGSANDBOX_OWNER": owner})
        self.answers = {}
        self.ended = self.server.greeting is None

    def begin(self, operation, arguments):
        self.server.begin(operation, arguments)
        return self.server.last_id

    def collect(self, ids, until):
        """Reads until all are answered, the program has ended, or the time is over."""
        while not set(ids) <= set(self.answers) and not self.ended:
            ready, _, _ = select.select([self.server.process.stdout], [], [], max(0, until - time.monotonic()))
            more = os.read(self.server.process.stdout.fileno(), 65536) if ready else b""
            if not more:
                self.ended = self.server.process.poll() is not None or bool(ready)
                return
            self.server.buffer += more
            while b"\n" in self.server.buffer:
                line, self.server.buffer = self.server.buffer.split(b"\n", 1)
                message = json.loads(line)
                if "method" not in message:
                    self.answers[message.get("id")] = message


class Player:
    def __init__(self, ground, schedule):
        self.schedule = schedule
        self.home = ground.copy()
        self.log = open(self.home.directory / "servers.log", "ab")
        self.clients = [None, None]
        self.slots = {}
        self.outcome = Outcome()

    def client(self, index):
        if self.clients[index] is None or self.clients[index].ended:
            self.clients[index] = Client(self.home, self.log, OWNERS[index])
        return self.clients[index]

    def play(self):
        for step in self.schedule:
            self.outcome.counts["steps"] += 1
            self.step(step)
        self.inventory()
        return self.outcome

    def step(self, step):
        if step["plant"]:
            slot = self.slots.get(step["plant"])
            if slot and slot.id:
                self.home.query(f"delete from pgsandbox.sandboxes where id = '{slot.id}'")
            return
        asked = []
        # both are there before it begins, so that the moments mean something
        for op in step["ops"]:
            if op["do"] != "expire":
                self.client(op["server"])
        if step["kill"]:
            self.client(step["kill"]["server"])
        begun = time.monotonic()
        for op in step["ops"]:
            if (request := self.request(op)) is not None:
                client = self.client(op["server"])
                asked.append((op, client, client.begin(*request)))
        rotation = None
        if step["rotate"]:
            self.outcome.counts["rotations"] += 1
            rotation = subprocess.Popen([self.home.program, "keys", "rotate"], env=self.home.environment,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        moments = [(step[what]["after_ms"], what) for what in ("kill", "end") if step[what]]
        for after_ms, what in sorted(moments):
            time.sleep(max(0, begun + after_ms / 1000 - time.monotonic()))
            if what == "kill":
                self.clients[step["kill"]["server"]].server.process.kill()
                self.outcome.counts["kills"] += 1
            elif pid := self.home.postmaster():
                os.kill(pid, getattr(signal, "SIG" + step["end"]["signal"]))
                self.outcome.counts["ends"] += 1
        until = time.monotonic() + ANSWER_SECONDS
        for _, client, number in asked:
            client.collect([number], until)
        if step["kill"]:
            victim = self.clients[step["kill"]["server"]]
            victim.server.process.wait()
            victim.ended = True
        if rotation:
            said, _ = rotation.communicate(timeout=ANSWER_SECONDS)
            self.outcome.check(rotation.returncode == 0 or step["end"] or b"retry" in said or b"again" in said,
                               f"step {step['n']}: keys rotate: {said.decode()}")
        creating = {owner: sum(1 for op, _, _ in asked if op["do"] == "create" and op["server"] == owner) for owner in (0, 1)}
        for op, client, number in asked:
            self.outcome.counts["asked"] += 1
            message = client.answers.get(number)
            envelope = message and message["result"]["structuredContent"]
            if envelope is None:
                self.outcome.check(client.ended, f"step {step['n']}: {op}: no answer within {ANSWER_SECONDS} s")
            else:
                self.outcome.counts["answered"] += 1
                self.outcome.counts["refused"] += not envelope["ok"]
            self.heard(step, op, envelope, creating)

    def request(self, op):
        """Returns the operation and its arguments, or `None` where there is nothing to ask for."""
        do = op["do"]
        if do == "list":
            return "list_databases", {"includeExpired": True}
        if do == "cleanup":
            return "cleanup_expired", {}
        if do == "create":
            slot = self.slots[op["slot"]] = Slot(op["slot"], op["server"])
            slot.arguments = {"nameHint": f"s{op['slot']}", "ttlMinutes": op["ttl"]}
            if op["key"]:
                slot.arguments["idempotencyKey"] = op["key"]
            return "create_database", slot.arguments
        slot = self.slots.get(op["slot"])
        if slot is None:
            return None
        if do == "again":
            return "create_database", slot.arguments
        if slot.id is None:
            return None
        if do == "expire":
            self.expire(slot)
            return None
        if do == "foreign":
            more = {"run_sql": {"sql": "select 1"}, "extend_database": {"ttlMinutes": 60}}.get(op["what"], {})
            return op["what"], {"databaseId": slot.id} | more
        return {
            "delete": ("delete_database", {"databaseId": slot.id, "wait": op.get("wait")}),
            "extend": ("extend_database", {"databaseId": slot.id, "ttlMinutes": op.get("ttl")}),
            "read": ("run_sql", {"databaseId": slot.id, "sql": "select current_user", "readonly": True}),
            "write": ("run_sql", {"databaseId": slot.id, "sql": "create table if not exists notes (v bigint); "
                                  f"insert into notes values ({op.get('value')})"}),
        }[do]

    def expire(self, slot):
        try:
            self.home.query(f"update pgsandbox.sandboxes set expires_at = now() - interval '1 s' where id = '{slot.id}' and state = 'ready'")
        except RuntimeError:
            return  # Postgres was ended a moment ago
        if slot.has("live"):
            slot.expired = True

    # ------------------------------------------------------------------------------------------------------- the model

    def heard(self, step, op, envelope, creating):
        """Takes an answer, or none, into what may be true; an answer that cannot be is a fault."""
        say = f"step {step['n']}: {op}: {json.dumps(envelope)[:500] if envelope else 'no answer'}"
        code = None if envelope is None else "ok" if envelope["ok"] else envelope["errors"][0]["code"]
        do = op["do"]
        check = self.outcome.check
        unknown = code is None or code in UNCERTAIN
        if do in ("list", "cleanup"):
            check(unknown or code == "ok", say)
            return
        slot = self.slots[op["slot"]]
        if do == "foreign":
            check(unknown or code == "database_not_found", say)
            return
        if do in ("create", "again"):
            return self.heard_create(say, do, slot, envelope, code, unknown, creating)
        gone = slot.has("gone", "absent") or slot.expired
        if code == "database_not_found":
            check(gone, say)
            slot.may = {"gone"}
        elif code == "sandbox_expired":
            check(slot.expired, say)
        elif code == "sandbox_not_ready":
            check(gone, say)
        elif do == "delete":
            check(unknown or code == "ok", say)
            slot.may = {"gone"} if code == "ok" else slot.may | {"gone"}
        elif do == "extend":
            check(unknown or code == "ok", say)
            if code == "ok":
                slot.until, slot.expired, slot.may = envelope["result"]["expiresAt"], False, {"live"}
            else:
                slot.until = None
        elif do == "write":
            check(unknown or code == "ok", say)
            (slot.must if code == "ok" else slot.maybe).add(op["value"])
        elif do == "read":
            check(unknown or code == "ok", say)

    def heard_create(self, say, do, slot, envelope, code, unknown, creating):
        check = self.outcome.check
        if code == "ok":
            result = envelope["result"]
            check(slot.id in (None, result["databaseId"]), f"one key made two sandboxes: {say}")
            check(do == "create" or slot.has("absent") or slot.id == result["databaseId"], say)
            slot.id, slot.may = result["databaseId"], {"live"}
            if do == "create":
                slot.until = result["expiresAt"]
        elif code == "quota_exceeded":
            # whatever may be live counts, and so does what is expired, and what others ask for at the same time
            counted = sum(1 for one in self.slots.values() if one.owner == slot.owner and one is not slot
                          and (one.has("live") or one.expired))
            check(counted + creating[slot.owner] >= QUOTA, f"{counted} may be live: {say}")
            slot.may |= {"absent"}
        elif code in ("database_not_found", "sandbox_not_ready", "sandbox_expired") and do == "again":
            check(slot.has("gone", "absent") or slot.expired or slot.id is None, say)
        else:
            check(unknown, say)
            slot.may |= {"absent", "live"}
            slot.until = None if do == "create" else slot.until

    def inventory(self):
        """Ends both servers, starts a new one, waits until nothing is unfinished, and compares."""
        check = self.outcome.check
        for client in self.clients:
            if client and not client.ended:
                status = client.server.end()
                check(status == 0, f"a server ended with status {status}")
        begun = time.monotonic()
        server = living.Server(self.home, self.log, {"PGSANDBOX_OWNER": "nobody"})
        envelope = server.call("list_databases", {})
        check(envelope["ok"] and not envelope["result"]["failures"], f"list_databases: {envelope}")
        for stuck in self.home.settle():
            check(False, f"stuck: {stuck}")
        self.outcome.settled = time.monotonic() - begun
        seen = self.home.look()
        for fault in living.disorder(seen):
            check(False, fault)
        owners = dict(self.home.query("select id, owner from pgsandbox.sandboxes"))
        live = {}
        for slot in self.slots.values():
            rows = [row for row in seen["rows"] if row["hint"] == f"s{slot.slot}" and row["state"] == "ready"]
            check(len(rows) <= 1, f"{slot.slot}: several sandboxes of one name: {rows}")
            if rows:
                live[rows[0]["id"]] = slot
                self.compare(slot, rows[0], owners)
            else:
                check(slot.has("absent", "gone") or slot.expired, f"{slot.slot} ({slot.id}) is lost; it may be {slot.may}")
        strange = [row for row in seen["rows"] if row["state"] == "ready" and row["id"] not in live]
        check(not strange, f"nobody asked for {strange}")
        for number, owner in enumerate(OWNERS):
            count = sum(1 for slot in live.values() if slot.owner == number)
            check(count <= QUOTA, f"{owner} has {count} live sandboxes; allowed are {QUOTA}")
        status = server.end()
        check(status == 0, f"the last server ended with status {status}")
        for left in living.leftovers(self.home):
            check(False, left)
        verified = self.home.run("audit", "verify")
        check(verified.returncode == 0 and "0 requests open" in verified.stdout, f"audit: {verified.stdout}{verified.stderr}")

    def compare(self, slot, row, owners):
        check = self.outcome.check
        check(slot.has("live"), f"{slot.slot} ({row['id']}) is there; it may be {slot.may}")
        check(slot.id in (None, row["id"]), f"{slot.slot} is {row['id']}, and was answered as {slot.id}")
        check(not slot.expired, f"{slot.slot} is expired and there")
        check(owners.get(row["id"]) == OWNERS[slot.owner], f"{slot.slot} belongs to {owners.get(row['id'])}")
        if slot.until and slot.id:
            check(row["expires_at"] == slot.until, f"{slot.slot} ends at {row['expires_at']}, and was answered {slot.until}")
        there = self.home.query("select exists (select from pg_class where relname = 'notes')", row["database"])
        values = {int(v) for v, in self.home.query("select v from notes", row["database"])} if there == [["t"]] else set()
        count = int(self.home.query("select count(*) from notes", row["database"])[0][0]) if there == [["t"]] else 0
        check(count == len(values), f"{slot.slot}: a write was done twice")
        check(slot.must <= values <= slot.must | slot.maybe,
              f"{slot.slot} holds {values}; it must hold {slot.must} and may hold {slot.maybe}")

    def remove(self):
        for client in self.clients:
            if client and client.server.process.poll() is None:
                client.server.process.kill()
                client.server.process.wait()
        self.log.close()
        pid = self.home.postmaster()
        if pid:
            os.kill(pid, signal.SIGQUIT)
            until = time.monotonic() + 20
            while os.path.exists(f"/proc/{pid}/cwd") and time.monotonic() < until:
                time.sleep(0.02)
        shutil.rmtree(self.home.directory)


def play(ground, schedule):
    player = Player(ground, schedule)
    try:
        return player.play()
    except Exception as error:
        player.outcome.faults.append(f"{type(error).__name__}: {error}")
        return player.outcome
    finally:
        player.remove()


# ----------------------------------------------------------------------------------------------------------- shrinking

def shrink(ground, schedule, attempts=2, plays_max=60):
    """Returns the smallest part found that still fails (delta debugging over steps, then over operations), and how many
    plays it took. What depends on a moment is played more than once."""
    plays = 0

    def fails(part):
        nonlocal plays
        for _ in range(attempts):
            if plays >= plays_max:
                return False
            plays += 1
            if play(ground, part).faults:
                return True
        return False

    pieces = 2
    while len(schedule) > 1:
        size = -(-len(schedule) // pieces)
        rest = [schedule[:at] + schedule[at + size:] for at in range(0, len(schedule), size)]
        smaller = next((part for part in rest if part and fails(part)), None)
        if smaller is not None:
            schedule, pieces = smaller, max(2, pieces - 1)
        elif pieces >= len(schedule):
            break
        else:
            pieces = min(len(schedule), 2 * pieces)
    for at, step in enumerate(schedule):
        for number in range(len(step["ops"]) - 1, -1, -1):
            if len(schedule[at]["ops"]) < 2:
                break
            kept = schedule[at].get("kept") or list(range(len(step["ops"])))
            ops = [op for op, index in zip(schedule[at]["ops"], kept) if index != number]
            part = schedule[:at] + [schedule[at] | {"ops": ops, "kept": [i for i in kept if i != number]}] + schedule[at + 1:]
            if fails(part):
                schedule = part
    return schedule, plays
