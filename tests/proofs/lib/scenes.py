"""What is played under orders: every operation of the program, each so that it can be played again and again on one home.

A scene is a function of a `Play`. What it needs is made before the orders count, by the function named beside it.
"""

import atexit
import http.server
import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import quote

from ground import POLICIES, ROOT, STRICT, Ground, Server

# A user of every machine, and its group.
OTHER_USER = 65534
DEMANDING = f"""
[[policy]]
name = "demanding"
source = "{ROOT}/tests/guests/demands_approval.wasm"
"""

# The least of a backlog that is put aside at the start, in bytes.
LOG_BYTES = 9 << 20


def nothing(_ground):
    return {}


def one(ground):
    return {"one": ground.take()}


def everyday(play, one):
    """The main job, and everything else that is asked for in a day."""
    server = play.server()
    play.insert(server, one)
    made = play.create(server, ttlMinutes=60)
    if made:
        play.call(server, "run_sql", {"databaseId": made, "sql": "create table acked (n int)"})
        play.insert(server, made)
    play.call(server, "run_sql", {"databaseId": one, "sql": "select count(*) from acked", "readonly": True})
    play.call(server, "extend_database", {"databaseId": one, "ttlMinutes": 90})
    play.call(server, "get_connection_string", {"databaseId": one, "includeCredentials": True})
    play.call(server, "list_databases", {})
    play.await_point("store.measured", "store.heartbeat", "audit.group.sync")
    if made:
        play.call(server, "delete_database", {"databaseId": made, "wait": True})
    play.end(server)


def look_around(play, one):
    """What only looks."""
    server = play.server()
    play.touched.add(one)
    play.call(server, "verify_sandbox", {"databaseId": one})
    play.call(server, "list_extensions", {"databaseId": one})
    play.call(server, "explain_policy", {"operation": "create_database", "arguments": {}})
    play.call(server, "list_profiles", {})
    play.call(server, "doctor", {})
    play.end(server)


def schemas(play, one):
    """A schema looked at, digested, compared and kept; so often that digests age."""
    server = play.server()
    play.touched.add(one)
    of = {"databaseId": one}
    play.call(server, "describe_schema", of)
    for n in range(34):
        play.call(server, "schema_digest", of | {"table": f"t{n}"})
    play.call(server, "schema_diff", of | {"otherDatabaseId": one})
    play.call(server, "create_schema_snapshot", of | {"snapshotName": "kept"})
    play.call(server, "list_schema_snapshots", {})
    play.call(server, "diff_schema_snapshot", of | {"snapshotName": "kept"})
    play.call(server, "delete_schema_snapshot", {"snapshotName": "kept"})
    play.end(server)


def create_fails(play):
    """A creation that fails at its last step, and is taken back."""
    server = play.server()
    play.create(server)
    play.end(server)


def delete_fails(play, one):
    """A removal that fails half-way, and is asked for again."""
    server = play.server()
    play.touched.add(one)
    for _ in range(2):
        play.call(server, "delete_database", {"databaseId": one, "wait": True})
    play.await_point("plan.delete.clear.after")
    play.end(server)


def expired(ground):
    names = [ground.take(), ground.take()]
    ground.home.query("update pgsandbox.sandboxes set expires_at = now() - interval '1 s' where id in "
                      f"('{names[0]}', '{names[1]}')")
    ground.live -= set(names)
    return {"gone": names}


def cleanup(play, gone):
    """Two whose time is over, removed by whoever comes first."""
    play.touched.update(gone)
    server = play.server()
    play.call(server, "cleanup_expired", {})
    play.end(server)


def over_quota(ground):
    name = ground.take()
    ground.home.query(f"update pgsandbox.sandboxes set bytes = 10, owner_bytes_max = 1, measured_at = now() where id = '{name}'")
    return {"one": name}


def logins(play, one):
    """A login that is taken away over its quota, and given back."""
    server = play.server()
    play.touched.add(one)
    play.call(server, "list_databases", {})
    play.await_point("store.note-login.written")
    play.insert(server, one)
    play.end(server)


def marked_as_gone(ground):
    name = ground.take()
    ground.home.query("update pgsandbox.sandboxes set state = 'deleted', ended_at = now() - interval '2 minutes' "
                      f"where id = '{name}'")
    ground.live.discard(name)
    return {"gone": [name]}


def sweep(play, gone):
    """One that is marked as gone and is there all the same."""
    play.touched.update(gone)
    server = play.server()
    play.call(server, "list_databases", {})
    play.await_point("plan.delete.drop-roles.after")
    play.end(server)


def died(ground):
    """A server that died in the middle of a creation, with half a line at the end of its log."""
    server = Server(ground.home, ground.log, {"PGSANDBOX_TEST_FAULTS": "plan.create.open-database.after=crash"})
    server.begin("create_database", {"nameHint": "died"})
    server.envelope(60)
    server.process.wait(60)
    segments = sorted((ground.home.state / "audit").glob(f"segment-*-{server.process.pid}-*"))
    with open(segments[-1], "ab") as segment:
        segment.write(b'{"hash":"12')
    return {}


def recovery(play):
    """What the next one does about that."""
    server = play.server()
    play.call(server, "list_databases", {})
    play.await_point("plan.undo.create-roles.after", "store.finish-undo.written")
    play.end(server)


def rotate_keys(play, one):
    """A new key, and everything sealed with it."""
    play.touched.add(one)
    play.command("keys", "rotate")
    server = play.server()
    play.insert(server, one)
    play.end(server)


def reload_policies(play):
    """Every server is asked to read its policies again, and goes on under them."""
    server = play.server()
    play.call(server, "list_profiles", {})
    play.command("policy", "reload")
    play.call(server, "list_profiles", {})
    play.end(server)


def cancelled(play, one):
    """A statement that is taken back, and one that takes too long."""
    server = play.server()
    play.touched.add(one)
    play.call(server, "run_sql", {"databaseId": one, "sql": "select 1"})
    if server.greeting is not None:
        server.begin("run_sql", {"databaseId": one, "sql": "select pg_sleep(3)", "timeoutSeconds": 4})
        time.sleep(0.4)
        server.cancel()
        time.sleep(0.4)
        play.await_point("socket.cancel")
    play.call(server, "list_databases", {})
    play.end(server)


def stopped(ground):
    in_stock(ground)
    ground.home.run("local", "stop")
    with open(ground.home.cluster / "log/server.log", "ab") as log:
        log.truncate(LOG_BYTES)
    return {"one": ground.spare[-1] if ground.spare else None}


def start_cluster(play, one):
    """A cluster that does not run, with a long log."""
    server = play.server()
    play.call(server, "list_databases", {})
    if one:
        play.insert(server, one)
    play.end(server)


def stop_cluster(play):
    """The cluster is stopped."""
    play.command("local", "stop")


def warm(ground):
    if not ground.warmed:
        server = ground.clean(ground.config("strict", STRICT))
        server.call("list_databases", {})
        server.finish()
        ground.warmed = True
    return in_stock(ground)


def in_stock(ground):
    one, two = ground.take(), ground.take()
    ground.spare += [one, two]
    return {}


def cold(ground):
    in_stock(ground)
    shutil.rmtree(ground.home.state / "cache")
    ground.warmed = False
    return {}


def gate(play):
    """A call that must be refused, whatever becomes of the policies."""
    play.strict = True
    play.must_fail.add("create_database")
    server = play.server(play.ground.config("strict", STRICT))
    play.create(server)
    play.call(server, "doctor", {})
    play.end(server)


class Between(threading.Thread):
    """Speaks TLS with its client and plain TCP with the cluster."""

    def __init__(self, port):
        super().__init__(daemon=True)
        folder = ROOT / "tests/it/wire/tls"
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(folder / "server.pem", folder / "server.key")
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.start()

    def run(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=[client], daemon=True).start()

    def serve(self, client):
        try:
            with client:
                if len(client.recv(8, socket.MSG_WAITALL)) < 8:
                    return
                client.sendall(b"S")
                with self.context.wrap_socket(client, server_side=True) as client, \
                        socket.create_connection(("127.0.0.1", self.target)) as server:
                    back = threading.Thread(target=self.pump, args=[server, client], daemon=True)
                    back.start()
                    self.pump(client, server)
                    back.join()
        except OSError:
            pass

    @staticmethod
    def pump(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        try:
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        self.listener.close()


def admit_admin(play):
    """Lets the admin in over TCP as well, for a server that is to be somebody else's; returns the cluster's directory."""
    play.ground.home.query("grant pgsandbox_direct to pgsandbox_admin", database="postgres")
    return play.ground.home.cluster


def external(play, one):
    """The same server as somebody else's, over TLS."""
    cluster = admit_admin(play)
    between = Between(int((cluster / "port").read_text()))
    password = (cluster / "admin-password").read_text()
    url = f"postgresql://pgsandbox_admin:{password}@127.0.0.1:{between.port}/pgsandbox?sslmode=require"
    profiles = [{"name": "outside", "adminUrl": url}]
    server = play.server(play.ground.config("external", profiles=profiles))
    play.insert(server, one)
    play.create(server)
    play.end(server)
    between.close()


def clones(play, one):
    """A database copied into three sandboxes: as it is, masked, and by a URL that might lead to production."""
    cluster = admit_admin(play)
    password = play.ground.home.directory / "source.password"
    password.touch(0o600)
    password.write_text((cluster / "admin-password").read_text().strip())
    port = (cluster / "port").read_text().strip()
    url = f"postgresql://pgsandbox_admin@127.0.0.1:{port}/pgsandbox?sslmode=disable"
    shop = {"url": url.replace("/pgsandbox?", "/postgres?"), "passwordFile": str(password), "production": True}
    sources = [{"name": "records", "url": url, "passwordFile": str(password)}, {"name": "shop"} | shop]
    by_url = url.replace("@", ":" + quote(password.read_text(), safe="") + "@", 1)
    entries = '[{ name = "records" }, { host = "127.0.0.1" }]'
    allowed = POLICIES + f'[[policy]]\nsource = "clone-source"\nsettings = {{ allow = {entries} }}\n'
    server = play.server(play.ground.config("clones", policies=allowed, sources=sources))
    play.insert(server, one)
    masks = [{"table": "pgsandbox.sandboxes", "column": "hint", "with": "fake"}]
    for more in ({"source": "records"}, {"source": "records", "mask": masks}, {"sourceDatabaseUrl": by_url}):
        hint = f"copy{next(Ground.numbers)}"
        asked = {"nameHint": hint, "idempotencyKey": hint} | more
        result = play.call(server, "clone_database", asked)
        if result:
            play.touched.add(result["databaseId"])
    play.end(server)


def copies(play, one):
    """A fork, a template and what is made of it; one copy is set back to where it began."""
    server = play.server(play.ground.config("copies"))
    play.insert(server, one)
    made = []
    name = f"kept{next(Ground.numbers)}"
    play.call(server, "explain_policy", {"operation": "create_template_from_sandbox", "arguments": {"databaseId": one, "templateName": name}})
    for operation, asked in (
        ("fork_database", {"databaseId": one}),
        ("create_template_from_sandbox", {"databaseId": one, "templateName": name}),
        ("create_sandbox_from_template", {"templateName": name}),
    ):
        result = play.call(server, operation, asked)
        if result and "templateName" not in result:
            play.touched.add(result["databaseId"])
            made.append(result["databaseId"])
    play.call(server, "list_templates", {})
    for database in made[:1]:
        play.call(server, "reset_database", {"databaseId": database})
    play.call(server, "delete_template", {"templateName": name})
    play.end(server)


def dumps(play, one):
    """A template is exported, brought to another file and back, and imported under its name."""
    server = play.server(play.ground.config("dumps"))
    play.insert(server, one)
    name = f"dumped{next(Ground.numbers)}"
    play.call(server, "create_template_from_sandbox", {"databaseId": one, "templateName": name})
    play.call(server, "export_template", {"templateName": name})
    file = play.ground.home.directory / f"{name}.template"
    play.command("exported", "save", name, str(file), "--format", "json")
    play.command("exported", "add", str(file), "--name", f"{name}.again", "--format", "json")
    play.call(server, "import_template", {"exportedName": name, "templateName": name, "replace": True})
    play.call(server, "list_templates", {})
    for exported in (name, f"{name}.again"):
        play.call(server, "delete_template", {"templateName": exported, "exported": True})
    play.call(server, "delete_template", {"templateName": name})
    file.unlink(missing_ok=True)
    play.end(server)


def approvals(play, one):
    """What is asked over the server as somebody else's, and another user of the machine approves: as root only."""
    ground, cluster = play.ground, admit_admin(play)
    password, port = (cluster / "admin-password").read_text().strip(), (cluster / "port").read_text().strip()
    url = f"postgresql://pgsandbox_admin:{password}@127.0.0.1:{port}/pgsandbox?sslmode=disable"
    other = Other(ground, url)
    server = play.server(ground.config("approvals", POLICIES + DEMANDING, **other.shared))
    # The second is refused by the core, as its life from creation would be too long: what was taken for it is given back.
    for minutes in (90, 1440):
        asked = {"databaseId": one, "ttlMinutes": minutes}
        play.touched.add(one)
        play.call(server, "extend_database", asked)
        handles = (play.heard[-1][2] or {}).get("detailHandles") or ["approval:" + "0" * 64]
        play.call(server, "list_approvals", {})
        other.approve(play, handles[0].removeprefix("approval:"))
        play.call(server, "extend_database", asked)
    play.end(server)
    other.close()


class Other:
    """Another user of the machine, with a state directory of its own, the same profile and the same keys."""

    home = None

    def __init__(self, ground, url):
        if Other.home is None:
            Other.home = Path(tempfile.mkdtemp(prefix="pgsandbox-other."))
            Other.home.chmod(0o1777)
            atexit.register(shutil.rmtree, Other.home, ignore_errors=True)
            shutil.copy(ground.home.program, Other.home / "pgsandbox")
        self.ground, keys = ground, Other.home / "keys"
        shutil.copy(ground.home.state / "master.keys", keys)
        self.shared = {"profiles": [{"name": "local", "adminUrl": url}], "keyCommand": ["/bin/cat", str(keys)]}
        (Other.home / "policies.toml").write_text(POLICIES)
        (Other.home / "config.json").write_text(json.dumps({"policies": str(Other.home / "policies.toml")} | self.shared))
        for name in ("keys", "policies.toml", "config.json"):
            (Other.home / name).chmod(0o644)
        (Other.home / "fired.log").write_text("")
        (Other.home / "fired.log").chmod(0o666)

    def approve(self, play, digest):
        environment = play.environment | {
            "PATH": os.environ["PATH"], "PGSANDBOX_HOME": str(Other.home / "state"),
            "PGSANDBOX_CONFIG": str(Other.home / "config.json"), "PGSANDBOX_TEST_FAULTS_LOG": str(Other.home / "fired.log"),
        }
        command = [str(Other.home / "pgsandbox"), "tool", "approve", "--format", "json", "--input",
                   json.dumps({"requestDigest": digest})]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, cwd="/",
                              user=OTHER_USER, group=OTHER_USER, extra_groups=[])
        play.ground.log.write(done.stderr.encode())
        play.statuses.append(done.returncode)
        if done.stdout.startswith("{"):
            play.heard.append(("approve", None, json.loads(done.stdout)))
        # One log for the play.
        with open(self.ground.orders_log, "a") as log:
            log.write((Other.home / "fired.log").read_text())
        (Other.home / "fired.log").write_text("")

    def close(self):
        (Other.home / "keys").unlink()


class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self):  # noqa: N802
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def export(play):
    """Spans go to a collector."""
    collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{collector.server_address[1]}"
    server = play.server(play.ground.config("export", telemetry={"enabled": True, "endpoint": endpoint}))
    play.call(server, "list_databases", {})
    play.end(server)
    collector.shutdown()
    collector.server_close()


def commands(play, one):
    """A repository is looked into, and a command of it is run."""
    play.touched.add(one)
    repo = play.ground.home.directory / "repo"
    repo.mkdir(exist_ok=True)
    (repo / "package.json").write_text("{}")
    allowed = POLICIES + '[[policy]]\nsource = "host-command"\nsettings = { allow = [["true"]] }\n'
    server = play.server(play.ground.config("commands", policies=allowed))
    play.call(server, "prepare_for_repo", {"repoPath": str(repo), "seedCommand": ["true"]})
    play.call(server, "seed_database", {"databaseId": one, "repoPath": str(repo)})
    play.end(server)


def clients(play):
    """Clients are set up, the program is tried as they start it, and that is taken back."""
    home = play.ground.home.state.parent / f"desk{next(type(play.ground).numbers)}"
    home.mkdir()
    play.environment |= {"HOME": str(home)}
    play.command("setup", "cursor", "--format", "json")
    play.command("smoke-test", "--format", "json")
    play.command("uninstall", "--format", "json")
    left = [str(path) for path in home.rglob("*") if path.is_file() and path.suffix != ".json"]
    if left:
        play.said.append(f"left beside a client's file: {left}")


def first_look(play):
    """The first command on a fresh state directory, which starts nothing."""
    play.command("doctor", "--format", "json", operation="doctor")


def first_create(play):
    """The first sandbox on a fresh state directory."""
    play.makes_cluster = True
    server = play.server()
    play.create(server)
    play.end(server)


# name: (what it needs, the scene, orders that it is always under, whether it needs a home of its own)
SCENES = {
    "gate": (warm, gate, "", False),
    "create-fails": (nothing, create_fails, "plan.create.prepare-owner.after=fail", False),
    "cleanup": (expired, cleanup, "", False),
    "stop-cluster": (nothing, stop_cluster, "", False),
    "export": (nothing, export, "", False),
    "look-around": (one, look_around, "", False),
    "schemas": (one, schemas, "", False),
    "everyday": (one, everyday, "", False),
    "sweep": (marked_as_gone, sweep, "", False),
    "reload-policies": (nothing, reload_policies, "", False),
    "rotate-keys": (one, rotate_keys, "", False),
    "cancelled": (one, cancelled, "", False),
    "recovery": (died, recovery, "", False),
    "logins": (over_quota, logins, "", False),
    "login-fails": (over_quota, logins, "store.note-login=fail@1", False),
    "delete-fails": (one, delete_fails, "plan.delete.clear.before=fail", False),
    "external": (one, external, "", False),
    "clones": (one, clones, "", False),
    "clone-fails": (one, clones, "plan.create.check-copy.after=fail", False),
    "copies": (one, copies, "", False),
    "copy-fails": (one, copies, "plan.create.give-copy.after=fail", False),
    "template-fails": (one, copies, "plan.create.seal-template.after=fail", False),
    "reset-fails": (one, copies, "plan.create.reset.after=fail:42501", False),
    "dumps": (one, dumps, "", False),
    "import-fails": (one, dumps, "plan.create.close-roles.after=fail", False),
    "approvals": (one, approvals, "", False),
    "commands": (one, commands, "", False),
    "gate-cold": (cold, gate, "", False),
    "start-cluster": (stopped, start_cluster, "", False),
    "clients": (nothing, clients, "", False),
    "first-look": (nothing, first_look, "", True),
    "first-create": (nothing, first_create, "", True),
}
assert Path(ROOT / "Cargo.toml").exists()
