"""Bad states of the state directory: no room, not writable, copied, restored, newer, wrong owners and modes, another major."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from bad_states import stop

CASES = []
# What a call says when its audit line cannot be written.
NO_AUDIT = "audit_unavailable"


def case(state, short=False):
    def put(function):
        CASES.append((state, function, short))
        return function
    return put


@contextlib.contextmanager
def mounted(where, *options):
    subprocess.run(["mount", *options, str(where)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


def on_small_disk(play, megabytes):
    """Returns a home whose state directory, but for the cluster's data, lies on a small disk of its own."""
    home = play.home()
    aside = home.directory / "aside"
    home.state.rename(aside)
    home.state.mkdir(mode=0o711)
    mount = mounted(home.state, "-t", "tmpfs", "-o", f"size={megabytes}m,mode=711", "tmpfs")
    mount.__enter__()
    for entry in aside.iterdir():
        if entry.name != "postgres":
            subprocess.run(["cp", "-a", str(entry), str(home.state)], check=True)
    (home.state / "postgres").mkdir(mode=0o711)
    bind = mounted(home.state / "postgres", "--bind", str(aside / "postgres"))
    bind.__enter__()

    @contextlib.contextmanager
    def ending():
        try:
            yield home
        finally:
            # the servers of the case have ended; the cluster is the bind mount's, and stays
            bind.__exit__(None, None, None)
            mount.__exit__(None, None, None)
    return ending()


def fill(directory):
    """Leaves no room below a directory."""
    path = directory / "filler"
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
    return path


@case("state directory's disk full, server running", short=True)
def disk_full_running(play):
    with on_small_disk(play, 24) as home:
        server = home.server()
        server.result("list_databases")
        extra = server.result("create_database")["databaseId"]
        filler = fill(home.state)
        one = play.template.kept[0]
        # what is left of the last page of the log takes some lines more
        while server.call("run_sql", {"databaseId": one, "sql": "select 1"})[0]["ok"]:
            pass
        play.expect(home, "list_databases", server.call("list_databases"), "ok")
        play.expect(home, "run_sql", server.call("run_sql", {"databaseId": one, "sql": "delete from kept"}), NO_AUDIT)
        play.expect(home, "create_database", server.call("create_database"), NO_AUDIT)
        play.expect(home, "delete_database", server.call("delete_database", {"databaseId": extra, "wait": True}), "ok")
        filler.unlink()
        play.expect(home, "list_databases, room again", server.call("list_databases"), "ok")
        server.end()
        play.whole(home)
        home.command("local", "stop")


@case("state directory's disk full at start")
def disk_full_start(play):
    with on_small_disk(play, 24) as home:
        filler = fill(home.state)
        server = home.server()
        play.expect(home, "list_databases", server.call("list_databases"), NO_AUDIT, retryable=True)
        play.expect(home, "doctor", server.call("doctor"), NO_AUDIT)
        rotated = home.command("keys", "rotate")
        play.refused(home, "keys rotate", rotated, [])
        stopped = home.command("local", "start")
        play.refused(home, "local start", stopped, [])
        server.end()
        filler.unlink()
        left = [entry.name for entry in home.state.iterdir() if entry.name not in
                {"pgsandbox.state", "audit", "limits", "cache", "servers", "postgres", "master.keys", "master.keys.lock"}]
        play.note("files left", str(left or "none"), f"left: {left}" if left else None)
        play.whole(home)
        home.command("local", "stop")


@case("state directory's disk full, one command after another", short=True)
def disk_full_commands(play):
    with on_small_disk(play, 24) as home:
        # what is charged has had one call
        shutil.rmtree(home.state / "limits")
        made = [json.loads(home.command("create-database", "--format", "json").stdout)["result"]["databaseId"] for _ in range(2)]
        filler = fill(home.state)
        # each is a program of its own, which begins a segment of the log and seals it
        for number, one in enumerate(made):
            for _ in range(4):
                done = home.command("list-databases")
                play.note(f"list-databases, {number}", f"status {done.returncode}",
                          None if done.returncode == 0 else f"{done.stdout}{done.stderr}")
            done = home.command("delete-database", "--database-id", one, "--wait")
            play.note(f"delete-database, {number}", f"status {done.returncode}",
                      None if done.returncode == 0 else f"{done.stdout}{done.stderr}")
        done = home.command("create-database")
        play.refused(home, "create-database", done, ["bytes are free"], codes=(1,))
        filler.unlink()
        play.whole(home, gone=made)
        home.command("local", "stop")


@case("disk of all full to the last byte, cluster killed", short=True)
def disk_full_for_all(play):
    """Nothing is left anywhere, and the cluster has to start.

    The audit log keeps room for what helps, so a list has to succeed, and a query has to get as far as the server and be refused for
    the disk itself. The ballast is as a copy leaves it, whole to look at and all holes: that has to be seen through, and it made anew,
    which is told by the blocks that it has. It is given up when no block of it is left. The file may stay, empty: it says that what was
    given up counts for nothing that is free; that the room is not filled again is shown by the create that is refused behind it.
    """
    home = play.home()
    aside = home.directory / "aside"
    home.state.rename(aside)
    home.state.mkdir(mode=0o711)
    with mounted(home.state, "-t", "tmpfs", "-o", "size=440m,mode=711", "tmpfs"):
        subprocess.run(["cp", "-a", f"{aside}/.", str(home.state)], check=True)
        # what is kept back may have holes in a copy: the server is to see that and make it anew
        kept_back = home.cluster / "data/pgsandbox.ballast"
        with open(kept_back, "r+b") as file:
            file.truncate(0)
            file.truncate(64 << 20)
        server = home.server()
        victim = server.result("create_database", {"nameHint": "victim"})["databaseId"]
        kept = kept_back.stat().st_blocks * 512 if kept_back.exists() else 0
        play.note("kept back", "yes" if kept >= 64 << 20 else "no", None if kept >= 64 << 20 else f"{kept} bytes are kept back")
        server.end()
        stop(home.cluster / "data/postmaster.pid", signal.SIGKILL)
        filler = fill(home.state)
        server = home.server()
        one = play.template.kept[0]
        # the log has room for what helps, and the cluster for one start
        play.expect(home, "list_databases", server.call("list_databases"), "ok")
        play.expect(home, "run_sql", server.call("run_sql", {"databaseId": one, "sql": "select 1"}), "disk_full")
        play.expect(home, "delete_database", server.call("delete_database", {"databaseId": victim, "wait": True}), "ok")
        left = kept_back.stat().st_blocks if kept_back.exists() else 0
        play.note("given up", "yes" if left == 0 else "no", f"it still has {left} blocks" if left else None)
        play.expect(home, "run_sql, read", server.call("run_sql", {"databaseId": one, "sql": "select 1", "readonly": True}), "ok")
        play.expect(home, "create_database", server.call("create_database"), "disk_full")
        filler.unlink()
        made = server.call("create_database", {"nameHint": "later"})
        play.expect(home, "create_database, room again", made, "ok")
        later = made[0]["result"]["databaseId"]
        play.expect(home, "delete_database", server.call("delete_database", {"databaseId": later, "wait": True}), "ok")
        server.end()
        play.whole(home, gone=[victim, later])
        home.command("local", "stop")


@case("no room for a fresh state directory")
def disk_full_fresh(play):
    with on_small_disk(play, 24) as home:
        shutil.rmtree(home.state / "cache")
        for name in ("pgsandbox.state", "master.keys"):
            (home.state / name).unlink()
        shutil.rmtree(home.state / "audit"), shutil.rmtree(home.state / "limits")
        fresh = home.state / "fresh"
        fresh.mkdir(mode=0o711)
        filler = fill(home.state)
        done = home.command("list-databases", environment={"PGSANDBOX_HOME": str(fresh)})
        play.refused(home, "list-databases", done, ["fresh"])
        filler.unlink()
        done = home.command("doctor", environment={"PGSANDBOX_HOME": str(fresh)})
        play.note("doctor, room again", f"status {done.returncode}",
                  None if done.returncode == 0 else f"{done.stdout}{done.stderr}")


@case("state directory read-only")
def read_only_mount(play):
    home = play.home()
    with mounted(home.state, "--bind", str(home.state)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(home.state)], check=True)
        server = home.server()
        play.expect(home, "list_databases", server.call("list_databases"), NO_AUDIT, retryable=True)
        play.expect(home, "create_database", server.call("create_database"), NO_AUDIT)
        play.expect(home, "doctor", server.call("doctor"), NO_AUDIT)
        play.refused(home, "keys rotate", home.command("keys", "rotate"), [])
        server.end()
    play.whole(home)


@case("state directory copied, the original alive", short=True)
def copied_alive(play):
    first = play.home()
    running = first.server()
    running.result("list_databases")
    one, other = play.template.kept
    second = copy_of(play, first)
    server = second.server()
    play.expect(second, "list_databases in the copy", server.call("list_databases"), "ok")
    pid, own = first.postmaster(), second.postmaster()
    play.note("two servers", "two" if pid != own else "one", None if pid != own else "the copy serves the original's cluster")
    play.expect(second, "delete_database in the copy",
                server.call("delete_database", {"databaseId": one, "wait": True}), "ok")
    play.expect(first, "list_databases in the original", running.call("list_databases"), "ok")
    server.end()
    running.end()
    play.whole(first, name="the original afterwards")
    play.whole(second, kept=[other], gone=[one], name="the copy afterwards")
    # both once more, each by a server that knows nothing yet
    play.note("still two", "", None if first.postmaster() != second.postmaster() else "one serves both")
    stopped = second.command("local", "stop")
    play.note("local stop in the copy", f"status {stopped.returncode}", None if stopped.returncode == 0 else stopped.stderr)
    alive = os.path.exists(f"/proc/{pid}/cwd")
    play.note("the original's server", "runs" if alive else "gone", None if alive else "the copy stopped the original's server")


def copy_of(play, home):
    """Copies a state directory as an operator would: nothing is written to it just now."""
    home.sql("checkpoint")
    copy = home.copy()
    play.made.append(copy)
    return copy


@case("state directory moved, stopped before")
def moved(play):
    home = play.home()
    moved = home.directory / "elsewhere"
    home.state.rename(moved)
    moved.rename(home.state)  # the name of its socket directory in it is the template's: another path
    play.whole(home)


@case("state directory moved while its server runs")
def moved_running(play):
    home = play.home()
    server = home.server()
    server.result("list_databases")
    server.end()
    elsewhere = home.directory / "elsewhere"
    home.state.rename(elsewhere)
    done = home.command("list-databases", environment={"PGSANDBOX_HOME": str(elsewhere)})
    play.note("list-databases", f"status {done.returncode}", None if done.returncode == 0 else done.stdout + done.stderr)
    elsewhere.rename(home.state)
    play.whole(home)


@case("postmaster.pid of another machine")
def foreign_pid(play):
    for pid, what in ((os.getpid(), "a process here"), (4194000, "no process here")):
        home = play.home()
        file = home.cluster / "data/postmaster.pid"
        file.write_text(f"{pid}\n/elsewhere/data\n1700000000\n65432\n/elsewhere/run\n127.0.0.1\n  1234567 0\nready   \n")
        owner = (home.cluster / "data").stat()
        os.chown(file, owner.st_uid, owner.st_gid)
        play.whole(home, name=f"afterwards ({what})")


@case("port taken by another cluster")
def port_taken(play):
    first, second = play.home(), play.home()
    server = first.server()
    server.result("list_databases")
    play.whole(second, name="the second afterwards")
    ports = {(home.cluster / "port").read_text() for home in (first, second)}
    play.note("ports", str(len(ports)), None if len(ports) == 2 else "one port twice")
    server.end()


@case("written by a newer build")
def newer(play):
    def keys(home):
        path = home.state / "master.keys"
        path.write_text("# pgsandbox master keys, format 2\nv2:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n")
    edits = {
        "state directory's format": lambda home: (home.state / "pgsandbox.state").write_text("pgsandbox state directory, format 2\n"),
        "cluster directory's format": lambda home: (home.state / "postgres/pgsandbox-state").write_text("state directory of pgsandbox, format 2\n"),
        "key file": keys,
    }
    for what, edit in edits.items():
        home = play.home()
        edit(home)
        before = contents(home)
        play.refused(home, f"run_sql: {what}", run_sql(play, home), [str(home.state)], codes=(1, 2))
        changed = {name for name in before if before[name] != contents(home).get(name) and "/audit" not in name}
        play.note("nothing changed", str(len(changed)), f"changed: {changed}" if changed else None)


def contents(home):
    return {str(path): path.read_bytes() for path in home.state.rglob("*")
            if path.is_file() and "/cache/" not in str(path) and "/data/" not in str(path)}


@case("metadata of a newer build")
def newer_metadata(play):
    home = play.home()
    server = home.server()
    server.result("list_databases")
    server.end()
    [[newer]] = home.sql("insert into pgsandbox.migrations (number, name, sha256) "
                         "select max(number) + 1, 'more', '\\x00' from pgsandbox.migrations returning number")
    server = home.server()
    one = play.template.kept[0]
    play.expect(home, "run_sql", server.call("run_sql", {"databaseId": one, "sql": "select 1"}), "invalid_configuration", retryable=False)
    play.expect(home, "create_database", server.call("create_database"), "invalid_configuration")
    play.expect(home, "delete_database", server.call("delete_database", {"databaseId": one}), "invalid_configuration")
    envelope = play.expect(home, "doctor", server.call("doctor"), "ok")
    play.note("doctor says so", "", None if f"version {newer}" in str(envelope) else f"doctor does not name it: {failing(envelope)}")
    server.end()
    home.sql(f"delete from pgsandbox.migrations where number = {newer}")
    play.whole(home)


def failing(envelope):
    """Returns the checks of `doctor` that did not pass."""
    return [check for check in envelope["result"]["checks"] if check["status"] in ("fail", "warn")]


@case("rate book and caches of a newer build")
def newer_book(play):
    home = play.home()
    for book in (home.state / "limits").glob("*.book"):
        data = bytearray(book.read_bytes())
        data[15:16] = b"2"
        book.write_bytes(bytes(data))
    for code in (home.state / "cache").glob("*.cwasm"):
        code.write_bytes(b"newer" + code.read_bytes())
    server = home.server()
    play.expect(home, "list_databases", server.call("list_databases"), ["ok", "limits_unavailable"])
    server.end()
    for book in (home.state / "limits").glob("*.book"):
        book.unlink()
    play.whole(home)


MODES = {
    "state directory open to others": (".", 0o777),
    "state directory readable": (".", 0o755),
    "key file readable": ("master.keys", 0o640),
    "admin password readable": ("postgres/postgres/15/admin-password", 0o644),
    "cluster folder writable": ("postgres/postgres/15", 0o777),
    "folder of clusters writable": ("postgres/postgres", 0o777),
    "cluster's home writable": ("postgres", 0o777),
    "audit folder open": ("audit", 0o755),
    "limits folder open": ("limits", 0o755),
    "cache folder open": ("cache", 0o755),
    "cache key readable": ("cache/key", 0o644),
    "audit manifest writable": ("audit/manifest.jsonl", 0o666),
    "port file writable": ("postgres/postgres/15/port", 0o666),
    "socket directory's name writable": ("postgres/postgres/15/socket-directory", 0o666),
    "marker writable": ("pgsandbox.state", 0o666),
    "data directory open": ("postgres/postgres/15/data", 0o755),
}


# Lies in a directory that nobody else can enter or change, or is a link to a directory that is ours: no way in.
HARMLESS = {
    "cache key readable", "audit manifest writable", "marker writable",
    "state/cache/key", "state/pgsandbox.state", "state/audit/manifest.jsonl",
    "link audit", "link audit/manifest.jsonl", "link postgres", "link postgres/postgres/15/data", "link postgres/postgres/15/run",
}
# What a refusal says of a wrong owner or mode, Postgres' own words for its data directory included.
NAMES_IT = ("mode", "user", "private", "link", "regular", "0700", "0600", "permissions")


def run_sql(play, home, environment=None):
    wish = json.dumps({"databaseId": play.template.kept[0], "sql": "select count(*) from kept"})
    return home.command("tool", "run_sql", "--input", wish, "--format", "json", environment=environment)


def refused_or_harmless(play, home, what, undo):
    """The state is refused with a sentence, or it does no harm; after it, everything is there."""
    done = run_sql(play, home)
    said = done.stdout + done.stderr
    if done.returncode == 0:
        play.note(what, "taken", None if what in HARMLESS else "it is taken as if nothing were wrong")
    else:
        named = any(word in said for word in NAMES_IT) and "hint" in said
        play.note(what, f"refused, status {done.returncode}", play.leak(home, said) or (None if named else f"not named: {said[:500]}"))
    undo()


@case("wrong modes")
def modes(play):
    home = play.home()
    for what, (name, mode) in MODES.items():
        path = home.state / name
        if "/15/" in name or name.endswith("/15"):
            path = home.cluster / name.split("/15")[1].lstrip("/") if name.split("/15")[1] else home.cluster
        before = path.stat().st_mode & 0o7777
        if path.name == "data":
            home.command("local", "stop")
        path.chmod(mode)
        refused_or_harmless(play, home, what, lambda: path.chmod(before))
    play.whole(home)


@case("files of another user")
def owners(play):
    home = play.home()
    names = ["master.keys", "limits", "audit", "cache", "cache/key", "pgsandbox.state", "audit/manifest.jsonl", "postgres"]
    paths = [home.state / name for name in names] + [home.cluster / "admin-password", home.cluster / "port", home.state]
    for path in paths:
        before = path.stat()
        os.chown(path, 12345, 12345)
        refused_or_harmless(play, home, str(path.relative_to(home.directory)), lambda: os.chown(path, before.st_uid, before.st_gid))
    play.whole(home)


@case("links in place of files")
def links(play):
    home = play.home()
    names = ["master.keys", "limits", "audit", "cache", "cache/key", "audit/manifest.jsonl", "postgres"]
    paths = [home.state / name for name in names] + [home.cluster / "admin-password", home.cluster / "data", home.cluster / "run"]
    aside = home.directory / "linked"
    for path in paths:
        path.rename(aside)
        path.symlink_to(aside)

        def undo():
            path.unlink()
            aside.rename(path)
        refused_or_harmless(play, home, "link " + str(path.relative_to(home.state)), undo)
    play.whole(home)


@case("cluster of another major")
def other_major(play):
    eighteen = os.environ.get("PGSANDBOX_TEST_POSTGRES_18_BIN_DIR", "/opt/pgsandbox-ci/pg18/bin")
    home = play.home()
    folder = home.cluster
    folder.rename(folder.with_name("19"))
    play.refused(home, "a folder of 19", run_sql(play, home), ["19"])
    folder.with_name("19").rename(folder)
    # data of one major in the folder of another
    version = folder / "data/PG_VERSION"
    version.write_text("14\n")
    play.refused(home, "data of 14 in 15's folder", run_sql(play, home), ["14", "15"])
    version.write_text("15\n")
    if Path(eighteen, "postgres").exists():
        config = home.directory / "eighteen.json"
        config.write_text('{"profiles": [{"name": "local", "managedLocal": true, "postgresVersion": 18}]}')
        fresh = {"PGSANDBOX_HOME": str(home.directory / "fresh18"), "PGSANDBOX_CONFIG": str(config),
                 "PGSANDBOX_POSTGRES_18_BIN_DIR": eighteen}
        made = home.command("create-database", environment=fresh)
        play.note("a cluster of 18 is made", f"status {made.returncode}", None if made.returncode == 0 else made.stdout + made.stderr)
        fresh18 = {"PGSANDBOX_HOME": fresh["PGSANDBOX_HOME"]}
        home.command("local", "stop", environment=fresh)
        stop(next(Path(fresh["PGSANDBOX_HOME"]).glob("postgres/postgres/18/data")) / "postmaster.pid")
        done = run_sql(play, home, environment=fresh18)
        play.refused(home, "data of 18, programs of 15", done, ["18"])
    play.whole(home)


@case("key ring older than the rows")
def older_keys(play):
    home = play.home()
    keys = home.state / "master.keys"
    old = keys.read_bytes()
    rotated = home.command("keys", "rotate")
    play.note("keys rotate", f"status {rotated.returncode}", None if rotated.returncode == 0 else rotated.stderr)
    new = keys.read_bytes()
    keys.write_bytes(old)
    one, other = play.template.kept
    server = home.server()
    play.expect(home, "run_sql", server.call("run_sql", {"databaseId": one, "sql": "select 1"}), "invalid_configuration", retryable=False)
    play.expect(home, "list_databases", server.call("list_databases"), "ok")
    play.expect(home, "create_database", server.call("create_database"), "ok")
    play.expect(home, "extend_database", server.call("extend_database", {"databaseId": one, "ttlMinutes": 700}), ["ok", "invalid_configuration"])
    envelope = play.expect(home, "doctor", server.call("doctor"), "ok")
    play.note("doctor says so", "", None if "key" in str(failing(envelope)) else "doctor does not say that keys are missing")
    made = server.result("list_databases")["databases"][-1]["databaseId"]
    play.expect(home, "delete_database", server.call("delete_database", {"databaseId": made, "wait": True}), "ok")
    server.end()
    again = home.command("keys", "rotate")
    play.refused(home, "keys rotate", again, ["key"], codes=(1, 2))
    lines = keys.read_bytes()
    keys.write_bytes(new + lines[len(old):])
    play.whole(home)


@case("audit log rolled back")
def older_audit(play):
    home = play.home()
    server = home.server()
    server.result("list_databases")
    server.end()
    audit, saved = home.state / "audit", home.directory / "audit-saved"
    shutil.copytree(audit, saved)
    server = home.server()
    for _ in range(3):
        server.result("list_databases")
    # the newest segment is removed while its server writes to it
    newest = max(audit.glob("segment-*"), key=lambda path: path.stat().st_mtime)
    newest.rename(home.directory / "newest")
    play.expect(home, "list_databases", server.call("list_databases"), "ok")
    server.end()
    verified = home.command("audit", "verify")
    play.refused(home, "audit verify: a segment removed", verified, [newest.name], codes=(1,))
    (home.directory / "newest").rename(newest)
    # a segment is cut
    text = newest.read_bytes()
    newest.write_bytes(b"".join(text.splitlines(keepends=True)[:-2]))
    play.refused(home, "audit verify: a segment cut", home.command("audit", "verify"), [newest.name], codes=(1,))
    newest.write_bytes(text)
    # all of it as it was before: what was lost cannot be seen from within, and the log goes on
    shutil.rmtree(audit)
    shutil.copytree(saved, audit)
    audit.chmod(0o700)
    play.whole(home)


@case("metadata restored from an older backup")
def older_metadata(play):
    home = play.home()
    server = home.server()
    server.result("list_databases")
    one, other = play.template.kept
    dumped = dump(home)
    new = server.result("create_database", {"nameHint": "later"})["databaseId"]
    server.result("delete_database", {"databaseId": one, "wait": True})
    server.end()
    restore(home, dumped)
    server = home.server()
    play.expect(home, "list_databases", server.call("list_databases"), "ok")
    play.expect(home, "run_sql, made since", server.call("run_sql", {"databaseId": new, "sql": "select 1"}), "database_not_found")
    play.expect(home, "run_sql, deleted since", server.call("run_sql", {"databaseId": one, "sql": "select 1"}), "database_not_found")
    envelope = play.expect(home, "doctor", server.call("doctor"), "ok")
    said = str(failing(envelope))
    play.note("doctor names both", "", None if "has no row" in said and "is gone" in said else f"not named: {said}")
    play.expect(home, "delete_database, deleted since", server.call("delete_database", {"databaseId": one, "wait": True}), "ok")
    time.sleep(1)
    databases = home.sql("select datname from pg_database where datname like 'pgsandbox%later%'")
    play.note("what has no row", "left alone" if databases else "dropped", None if databases else "it was dropped")
    # a person drops what has no row, as doctor says
    for name, in databases:
        home.sql(f'drop database "{name}" with (force)')
        home.sql(f'drop role "{name}_role"')
        home.sql(f'drop role "{name}_ro"')
    server.end()
    play.whole(home, kept=[other], gone=[one])


def pg_tool(home, tool, *arguments):
    environment = os.environ | {"PGPASSWORD": (home.cluster / "admin-password").read_text()}
    return subprocess.run(
        [tool, "-h", (home.cluster / "socket-directory").read_text(), "-p", (home.cluster / "port").read_text().strip(),
         "-U", "pgsandbox_admin", *arguments], env=environment, check=True, capture_output=True)


def dump(home):
    return pg_tool(home, "pg_dump", "-d", "pgsandbox", "-n", "pgsandbox").stdout


def restore(home, dumped):
    with tempfile.NamedTemporaryFile(dir=home.directory) as file:
        file.write(dumped)
        file.flush()
        home.sql("drop schema pgsandbox cascade")
        pg_tool(home, "psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", "pgsandbox", "-f", file.name)
