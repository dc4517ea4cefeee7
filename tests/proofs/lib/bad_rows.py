"""Bad states of the metadata: every column of a sandbox's row edited by hand, in turn."""

import json

# column or what is edited, the edit ({one}, {other} are ids; {name} the database of one), what is left to do with the
# sandbox itself: `refused` with these codes, or `served`.
DAMAGED = ["metadata_damaged", "database_not_found", "internal"]
EDITS = [
    ("expires_at infinity", "expires_at = 'infinity'", "metadata_damaged"),
    ("expires_at -infinity", "expires_at = '-infinity'", "metadata_damaged"),
    ("expires_at in the year 250000", "expires_at = '250000-01-01'", "metadata_damaged"),
    ("expires_at before Christ", "expires_at = '4000-01-01 BC'", "metadata_damaged"),
    ("created_at infinity", "created_at = 'infinity'", "metadata_damaged"),
    ("created_at -infinity", "created_at = '-infinity'", "metadata_damaged"),
    ("database_name of the system", "database_name = 'postgres'", "metadata_damaged"),
    ("database_name without prefix", "database_name = 'template1'", "metadata_damaged"),
    ("database_name with a quote", "database_name = 'pgsandbox_x\"; drop table y; --'", "metadata_damaged"),
    ("owner_role the superuser", "owner_role = 'pgsandbox_admin'", "metadata_damaged"),
    ("owner_role empty", "owner_role = ''", "metadata_damaged"),
    ("readonly_role another's", "readonly_role = (select readonly_role || 'x' from pgsandbox.sandboxes where id = '{other}')", "metadata_damaged"),
    ("prefix another's", "prefix = 'other'", "database_not_found"),
    ("engine unknown", "engine = 'mysql'", "metadata_damaged"),
    ("owner_sealed of another row", "owner_sealed = (select owner_sealed from pgsandbox.sandboxes where id = '{other}')", "metadata_damaged"),
    ("owner_sealed empty", "owner_sealed = ''", "metadata_damaged"),
    ("owner_sealed of a newer envelope", "owner_sealed = '\\x02'::bytea || substring(owner_sealed from 2)", "metadata_damaged"),
    ("readonly_sealed and owner_sealed exchanged", "readonly_sealed = owner_sealed, owner_sealed = readonly_sealed", "metadata_damaged"),
    ("labels a list", "labels = '[1]'", "metadata_damaged"),
    ("labels nested", "labels = '{{\"a\": [\"b\"]}}'", "metadata_damaged"),
    ("extensions with null", "extensions = array[null]", "metadata_damaged"),
    ("extensions nested", "extensions = array[array['a'], array['b']]", "metadata_damaged"),
    ("bytes negative", "bytes = -1", "metadata_damaged"),
    ("owner_bytes_max negative", "owner_bytes_max = -5", "metadata_damaged"),
    ("state creating", "state = 'creating'", "sandbox_not_ready"),
    ("state deleting", "state = 'deleting'", "sandbox_not_ready"),
    ("state deleted", "state = 'deleted'", "database_not_found"),
    ("state failed", "state = 'failed'", "database_not_found"),
    ("owner another's", "owner = 'somebody else'", "database_not_found"),
    ("owner of 100000 characters", "owner = repeat('x', 100000)", "database_not_found"),
    ("hint, failure, subject nonsense", "hint = repeat('y', 100000), failure = 'z', subject = ''", "ok"),
    ("group_owner nonsense", "group_owner = chr(1) || repeat('g', 5000)", "ok"),
    ("login_withheld", "login_withheld = true", "ok"),
    ("login_turning", "login_turning = true", "ok"),
    ("kind template", "kind = 'template', template_name = 'x'", "database_not_found"),
    ("source_id another's, source_name nonsense", "source_id = '{other}', source_name = repeat('s', 5000)", "ok"),
    ("measured_at infinity", "measured_at = 'infinity'", "ok"),
]
# With `--short`, so many of them, from all over the list.
SHORT = 8


def edited(play):
    """One home for all edits: each is made on one sandbox while its server runs, and taken back."""
    home = play.home()
    server = home.server()
    one, other = play.template.kept
    server.result("list_databases")
    columns = home.sql("select column_name from information_schema.columns where table_schema = 'pgsandbox' "
                       "and table_name = 'sandboxes' and column_name not in ('id', 'ended_at', 'origin', 'group_bytes_max')")
    tried = " ".join(edit for _, edit, _ in EDITS)
    missing = [name for name, in columns if f"{name} =" not in tried]
    play.note("every column", f"{len(columns)} columns", f"not edited: {missing}" if missing else None)
    for what, edit, code in EDITS[:: len(EDITS) // SHORT] if play.short else EDITS:
        home.sql("create table if not exists public.saved as select * from pgsandbox.sandboxes where false")
        home.sql(f"insert into public.saved select * from pgsandbox.sandboxes where id = '{one}'")
        home.sql(f"update pgsandbox.sandboxes set {edit.format(one=one, other=other)} where id = '{one}'")
        fault = look(play, home, server, what, code)
        home.sql(f"update pgsandbox.sandboxes b set {back(home)} from public.saved s where b.id = s.id")
        home.sql("delete from public.saved")
        play.note(what, code, fault)
    home.sql("drop table public.saved")
    server.end()
    play.whole(home)


def back(home):
    columns = home.sql("select column_name from information_schema.columns where table_schema = 'pgsandbox' "
                       "and table_name = 'sandboxes' and column_name <> 'id'")
    return ", ".join(f"{name} = s.{name}" for name, in columns)


def look(play, home, server, what, code):
    """The edited sandbox gets the code, the other one works, doctor says so, a cleanup and upkeep drop nothing."""
    one, other = play.template.kept
    for operation, arguments in (
        ("run_sql", {"databaseId": one, "sql": "select 1"}),
        ("run_sql", {"databaseId": one, "sql": "select 1", "readonly": True}),
        ("get_connection_string", {"databaseId": one, "includeCredentials": True}),
        ("extend_database", {"databaseId": one, "ttlMinutes": 601}),
    ):
        envelope, _ = server.call(operation, arguments)
        found = "ok" if envelope["ok"] else envelope["errors"][0]["code"]
        # a session that is kept goes on: its password was right when it was opened
        kept = operation == "run_sql" and ("sealed" in what or code == "ok")
        if found != code and not (kept and found == "ok"):
            return f"{operation}: {found} instead of {code}: {json.dumps(envelope)[:600]}"
        if found != "ok" and not envelope["errors"][0].get("hint"):
            return f"{operation}: no hint: {envelope['errors']}"
        if code != "ok" and (leak := play.leak(home, json.dumps(envelope))):
            return leak
    envelope, _ = server.call("run_sql", {"databaseId": other, "sql": "select count(*) from kept"})
    if not envelope["ok"]:
        return f"the other sandbox does not answer: {envelope['errors']}"
    envelope, _ = server.call("list_databases", {"includeExpired": True})
    if not (envelope["ok"] and not envelope["result"]["failures"] and other in json.dumps(envelope["result"])):
        return f"the other sandbox is not listed: {json.dumps(envelope)[:600]}"
    envelope, _ = server.call("cleanup_expired", {"dryRun": False})
    if not envelope["ok"] or envelope["result"].get("profileFailures"):
        return f"cleanup: {json.dumps(envelope)[:600]}"
    doctor, _ = server.call("doctor")
    named = [check for check in doctor["result"]["checks"] if check["status"] in ("fail", "warn") and one in check["detail"]]
    if code != "ok" and not named and not quiet(home, one):
        return "doctor does not name it: " + json.dumps([c for c in doctor["result"]["checks"] if c["status"] != "ok"])
    names = {name for name, in home.sql("select datname from pg_database where datname like 'pgsandbox\\_%'")}
    if set(play.template.names.values()) - names:
        return f"dropped: {set(play.template.names.values()) - names}"
    roles = int(home.sql("select count(*) from pg_roles where rolname like 'pgsandbox\\_%' and rolcanlogin")[0][0])
    if roles != 5:
        return f"{roles} roles may log in instead of 5"
    return None


def quiet(home, one):
    """An owner that was changed is another owner, a sandbox made a template a template: the row does not say that it was edited."""
    owner, kind = home.sql(f"select owner, kind from pgsandbox.sandboxes where id = '{one}'")[0]
    return owner.startswith(("somebody", "xxx")) or kind == "template"


CASES = [("metadata row edited by hand", edited, True)]
