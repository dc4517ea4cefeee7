//! The true state of a cluster, as its superuser reads it: every catalogue, every table, and files beside it.
//!
//! A state is a map from *where and what* to a text, so that two of them differ by name. Rows of ordinary tables and
//! catalogues are told by number, place and writing transaction: nothing that a sandbox has made is run to read them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use tokio_postgres::Client;

use super::room::BOSS;
use crate::harness::LIMITED;

/// What there is, by place and name.
pub(super) type State = BTreeMap<(String, String), String>;

/// What belongs to the whole cluster.
const SHARED: &str = "
    SELECT 'role ' || rolname, (rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication,
        rolbypassrls, rolconnlimit, rolvaliduntil, oid)::text FROM pg_authid
    UNION ALL SELECT 'password of ' || rolname, coalesce(rolpassword, '') FROM pg_authid
    UNION ALL SELECT 'member ' || roleid::regrole || ' <- ' || member::regrole || ' by ' || grantor::regrole, m::text
        FROM pg_auth_members m
    UNION ALL SELECT 'database ' || datname, (oid, datdba, datistemplate, datallowconn, datconnlimit, dattablespace,
        datacl)::text FROM pg_database
    UNION ALL SELECT 'setting of ' || coalesce(r.rolname, '*') || ' in ' || coalesce(d.datname, '*'), setconfig::text
        FROM pg_db_role_setting s LEFT JOIN pg_authid r ON r.oid = setrole LEFT JOIN pg_database d ON d.oid = setdatabase
    UNION ALL SELECT 'tablespace ' || spcname, t::text FROM pg_tablespace t
    UNION ALL SELECT 'comment on ' || coalesce('database ' || d.datname, 'role ' || r.rolname, objoid::text), description
        FROM pg_shdescription s LEFT JOIN pg_database d ON d.oid = objoid AND classoid = 'pg_database'::regclass
        LEFT JOIN pg_authid r ON r.oid = objoid AND classoid = 'pg_authid'::regclass
    UNION ALL SELECT 'label on ' || objoid, label FROM pg_shseclabel
    UNION ALL SELECT 'origin ' || roname, '' FROM pg_replication_origin
    UNION ALL SELECT 'subscription ' || subname, subdbid::text FROM pg_subscription";

/// What no transaction has to be written for. `$1` are sessions that must live on. The program's own sessions, logged in
/// as the admin `$2`, lock an owner's quota for as long as they reserve a place in it, and are not what is looked for.
const FLEETING: &str = "
    SELECT 'slot ' || slot_name, (plugin, slot_type, database, temporary, restart_lsn)::text FROM pg_replication_slots
    UNION ALL SELECT 'prepared ' || gid, owner || ' ' || database FROM pg_prepared_xacts
    UNION ALL SELECT 'session ' || pid, backend_start::text FROM pg_stat_activity WHERE pid = ANY ($1)
    UNION ALL SELECT 'advisory lock ' || database::text || '/' || classid || '/' || objid, mode FROM pg_locks
        WHERE locktype = 'advisory' AND classid <> x'50475342'::int::oid
            AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = pg_locks.pid AND a.usename = ANY ($2))
    UNION ALL SELECT '', pg_snapshot_xmax(pg_current_snapshot())::text
    UNION ALL SELECT 'file ' || name, md5(pg_read_file(name)) FROM unnest(ARRAY['postgresql.conf',
        'postgresql.auto.conf', 'pg_hba.conf', 'pg_ident.conf']) name
    UNION ALL SELECT 'folder ' || dir, string_agg(f, ' ' ORDER BY f) FROM unnest(ARRAY['.', 'pg_tblspc',
        'pg_replslot']) dir, pg_ls_dir(dir) f GROUP BY dir
    UNION ALL SELECT 'settings', md5(string_agg(name || '=' || setting, ',' ORDER BY name)) FROM pg_settings
        WHERE source IN ('configuration file', 'command line', 'default', 'override') AND name <> 'application_name'";

/// Catalogues whose rows tell of everything in a database but its tables' rows.
const CATALOGUES: &[&str] = &[
    "pg_aggregate",
    "pg_am",
    "pg_amop",
    "pg_amproc",
    "pg_attrdef",
    "pg_cast",
    "pg_collation",
    "pg_constraint",
    "pg_conversion",
    "pg_default_acl",
    "pg_enum",
    "pg_event_trigger",
    "pg_extension",
    "pg_foreign_data_wrapper",
    "pg_foreign_server",
    "pg_foreign_table",
    "pg_inherits",
    "pg_init_privs",
    "pg_language",
    "pg_largeobject",
    "pg_largeobject_metadata",
    "pg_namespace",
    "pg_opclass",
    "pg_operator",
    "pg_opfamily",
    "pg_policy",
    "pg_proc",
    "pg_publication",
    "pg_range",
    "pg_rewrite",
    "pg_seclabel",
    "pg_sequence",
    "pg_statistic_ext",
    "pg_transform",
    "pg_trigger",
    "pg_ts_config",
    "pg_ts_dict",
    "pg_ts_parser",
    "pg_ts_template",
    "pg_type",
    "pg_user_mapping",
];

/// Tables of the metadata that the program writes of its own accord, and what of them is nobody else's to change.
const OWN_ACCORD: &[(&str, &str)] = &[
    ("pgsandbox.servers", "SELECT count(*)::text FROM pgsandbox.servers"),
    // Lines of ended plans are forgotten after a while.
    (
        "pgsandbox.journal",
        "SELECT count(*)::text FROM pgsandbox.journal j JOIN pgsandbox.plans p ON p.id = j.plan_id \
         WHERE p.state IN ('running', 'undoing')",
    ),
    (
        "pgsandbox.sandboxes",
        "SELECT md5(string_agg((id, prefix, database_name, owner_role, readonly_role, owner_sealed, readonly_sealed, \
         owner, subject, group_owner, labels, state, created_at, expires_at)::text, ',' ORDER BY id)) \
         FROM pgsandbox.sandboxes",
    ),
];

/// Adds what belongs to the whole cluster.
pub(super) async fn shared(client: &Client, into: &mut State) {
    add(client, "cluster", SHARED, into).await;
}

/// Returns what no transaction is needed for, the number of the next transaction among it.
pub(super) async fn fleeting(client: &Client, sessions: &[i32]) -> (State, String) {
    let mut state = State::new();
    for row in client.query(FLEETING, &[&sessions, &[BOSS, LIMITED].as_slice()]).await.unwrap() {
        state.insert(("cluster".into(), row.get(0)), row.get::<_, Option<String>>(1).unwrap_or_default());
    }
    let next = state.remove(&("cluster".into(), String::new())).unwrap();
    (state, next)
}

/// Adds everything in one database; `metadata` says that the program's own tables are in it.
pub(super) async fn database(client: &Client, name: &str, metadata: bool, into: &mut State) {
    let relations = "SELECT c.relkind::text, format('%I.%I', nspname, relname), c.oid FROM pg_class c \
                     JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid >= 16384 AND relkind IN ('r', 'm', 'S') \
                     AND relpersistence <> 't' AND nspname !~ '^pg_'";
    let mut sql = "SELECT 'relation ' || nspname || '.' || relname, (c.oid, relkind, relowner, relacl, relnatts, \
        relrowsecurity, relhastriggers, relhasrules, relreplident, reloptions, relispopulated, reltablespace)::text \
        FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace \
        WHERE relpersistence <> 't' AND nspname !~ '^pg_(toast|temp)'"
        .to_owned();
    let written = "count(*) || '/' || coalesce(sum(hashtext(xmin::text || ctid::text)), 0)";
    for catalogue in CATALOGUES {
        _ = write!(sql, " UNION ALL SELECT 'rows of {catalogue}', {written} FROM pg_catalog.{catalogue}");
    }
    for row in client.query(relations, &[]).await.unwrap() {
        let (kind, relation): (String, String) = (row.get(0), row.get(1));
        let own = OWN_ACCORD.iter().find(|(name, _)| metadata && *name == relation);
        let content = match (own, kind.as_str()) {
            (Some((_, content)), _) => format!("({content})"),
            // its next value moves with them
            (None, "S") if metadata && relation.starts_with("pgsandbox.") => continue,
            (None, "S") => format!("(SELECT last_value || ' ' || is_called FROM {relation})"),
            (None, _) => format!("(SELECT {written} FROM {relation})"),
        };
        _ = write!(sql, " UNION ALL SELECT 'content of ' || '{}', {content}", relation.replace('\'', "''"));
    }
    add(client, name, &sql, into).await;
}

/// Returns the values of a database's sequences, which no transaction has to be written for.
pub(super) async fn sequences(client: &Client, name: &str, into: &mut State) {
    let sql = "SELECT 'sequence ' || sequencename, coalesce(last_value, 0)::text FROM pg_sequences \
               WHERE schemaname = 'public'";
    add(client, name, sql, into).await;
}

/// Adds the files below a folder: their modes, owners and contents.
pub(super) fn files(dir: &Path, into: &mut State) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let about = fs::symlink_metadata(&path).unwrap();
        let content = if about.is_file() { fs::read_to_string(&path).unwrap_or_default() } else { String::new() };
        let told = format!("{:o} {} {content}", about.mode(), about.uid());
        into.insert(("files".into(), path.display().to_string()), told);
        if about.is_dir() {
            files(&path, into);
        }
    }
}

async fn add(client: &Client, place: &str, sql: &str, into: &mut State) {
    let rows = client.query(sql, &[]).await.unwrap_or_else(|e| panic!("{place}: {e:?}: {sql}"));
    for row in rows {
        let (name, told): (String, Option<String>) = (row.get(0), row.get(1));
        into.insert((place.to_owned(), name), told.unwrap_or_default());
    }
}

/// Returns what differs, by place and name, with what it was and what it is.
pub(super) fn differences(before: &State, after: &State) -> Vec<((String, String), String)> {
    let names = before.keys().chain(after.keys().filter(|key| !before.contains_key(*key)));
    names
        .filter(|key| before.get(*key) != after.get(*key))
        .map(|key| {
            let (was, is) = (before.get(key), after.get(key));
            (key.clone(), format!("was {was:?}, is {is:?}"))
        })
        .collect()
}
