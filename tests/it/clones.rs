//! Clones through the real program: whole, masked, refused, stopped; the source untouched, and nothing left of what failed.
//!
//! The source is a server of its own where what it noticed is looked at; elsewhere it is a database beside the sandboxes'.

mod approved;
mod bound;
mod code;
mod demanded;
mod encodings;
mod encrypted;
mod guarded;
mod half_open;
mod hostile;
mod known;
mod limited;
mod masked;
mod refused;
mod stopped;
mod unset;
mod whole;
mod withheld;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio as Pipe};

use serde_json::{Value, json};

use crate::harness::{self, Cluster, block_on};
use crate::policies::guest::Guest;
use crate::program::{Cli, Home, Transport};

/// The role that reads sources. Its password has what a URL or a password file could stumble over.
pub(crate) const READER: &str = "reader";
pub(crate) const READER_PASSWORD: &str = "s3cret:pass\\w@r/d%#?";
const READER_PASSWORD_ENCODED: &str = "s3cret%3Apass%5Cw%40r%2Fd%25%23%3F";

/// Settings of the policy under which every configured source may be cloned.
const NAMED: &str = "settings = { allow = [{ name = \"*\" }] }\n";

/// A program whose sandboxes are on one server, and whose sources may be anywhere.
pub(crate) struct Setup {
    pub(crate) home: Home,
    pub(crate) target: &'static Cluster,
    /// What its databases and roles begin with.
    pub(crate) prefix: &'static str,
}

/// Returns the URL of a database, for the reader.
pub(crate) fn reader_url(cluster: &Cluster, database: &str) -> String {
    cluster.url(READER, READER_PASSWORD_ENCODED, database)
}

/// Makes a database to be cloned, and the reader that may read it.
pub(crate) fn source(cluster: &Cluster, database: &str, options: &str, script: &str) {
    block_on(async {
        let admin = cluster.superuser("postgres").await;
        let role = format!(
            "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{READER}') THEN \
             CREATE ROLE {READER} LOGIN PASSWORD '{}'; END IF; END $$",
            READER_PASSWORD.replace('\'', "''")
        );
        admin.batch_execute("SET standard_conforming_strings = on").await.unwrap();
        admin.batch_execute(&role).await.unwrap();
        admin.batch_execute(&format!("CREATE DATABASE {database} TEMPLATE template0 {options}")).await.unwrap();
        let inside = cluster.superuser(database).await;
        inside.batch_execute(script).await.unwrap();
        let grants = "DO $$ DECLARE s text; BEGIN FOR s IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' \
             AND nspname <> 'information_schema' LOOP EXECUTE format('GRANT USAGE ON SCHEMA %I TO reader', s); \
             EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %I TO reader', s); \
             EXECUTE format('GRANT SELECT ON ALL SEQUENCES IN SCHEMA %I TO reader', s); END LOOP; END $$";
        inside.batch_execute(grants).await.unwrap();
    });
}

impl Setup {
    /// A program with these sources, each a name, a URL and further keys, on one server.
    pub(crate) fn on(target: &'static Cluster, prefix: &'static str, sources: &[(&str, String, Value)]) -> Self {
        Self::by(target, &target.superuser_url(), prefix, sources)
    }

    /// The same by another admin.
    pub(crate) fn by(
        target: &'static Cluster,
        admin_url: &str,
        prefix: &'static str,
        sources: &[(&str, String, Value)],
    ) -> Self {
        let home = Home::fresh();
        let sources: Vec<Value> = sources
            .iter()
            .map(|(name, url, more)| {
                let mut source = json!({"name": name, "url": url});
                source.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                source
            })
            .collect();
        let config = json!({
            "profiles": [{"name": "local", "adminUrl": admin_url, "databasePrefix": prefix}],
            "sources": sources,
        });
        let path = home.path().join("config.json");
        fs::write(&path, config.to_string()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let path = path.to_str().unwrap().to_owned();
        let mut home = home.with("PGSANDBOX_CONFIG", &path);
        for cluster in harness::clusters() {
            home =
                home.with(&format!("PGSANDBOX_POSTGRES_{}_BIN_DIR", cluster.major), cluster.bin_dir.to_str().unwrap());
        }
        Self { home, target, prefix }
    }

    /// The same with settings of the `clone-source` policy.
    pub(crate) fn under(self, settings: &str) -> Self {
        self.policies(&crate::obligations::policies_with("clone-source", &format!("settings = {settings}\n")))
    }

    /// The same with settings of one of the bundled policies.
    pub(crate) fn with_policy(self, name: &str, settings: &str) -> Self {
        self.policies(&crate::obligations::policies_with(name, &format!("settings = {settings}\n")))
    }

    /// The same with a policy beside the bundled ones.
    pub(crate) fn beside(self, guest: &Guest) -> Self {
        fs::write(self.home.path().join("guest.wasm"), guest.component()).unwrap();
        let entry = format!("[[policy]]\nname = \"{}\"\nsource = \"./guest.wasm\"\n", guest.name);
        self.policies(&format!("{}{entry}", crate::obligations::policies_with("clone-source", NAMED)))
    }

    fn policies(self, text: &str) -> Self {
        let file = self.home.path().join("policies.toml");
        fs::write(&file, text).unwrap();
        let path = self.home.path().join("config.json");
        let mut config: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        config["policies"] = json!(file.to_str().unwrap());
        fs::write(&path, config.to_string()).unwrap();
        self
    }

    pub(crate) fn clone(&self, input: Value) -> Value {
        Cli::new(&self.home).call("clone_database", &input)
    }

    /// Clones and expects it to succeed; returns the result.
    pub(crate) fn cloned(&self, input: Value) -> Value {
        let reply = self.clone(input);
        assert_eq!(reply["ok"], true, "{reply:#}");
        reply["result"].clone()
    }

    /// Clones and expects it to be refused with a code, saying something, with nothing left.
    pub(crate) fn refused(&self, input: Value, code: &str, says: &str) -> Value {
        let reply = self.clone(input.clone());
        let error = &reply["errors"][0];
        assert_eq!(error["code"], code, "{input}: {reply:#}");
        let text = format!("{} {}", error["message"], error["hint"]);
        assert!(text.contains(says), "{input}: `{says}` is not said: {text}");
        assert!(!reply.to_string().contains("s3cret"), "{reply:#}");
        self.nothing_is_left();
        error.clone()
    }

    /// Checks that no sandbox's database or role is there, no file of a copy, and no program.
    pub(crate) fn nothing_is_left(&self) {
        let pattern = format!("{}\\_%", self.prefix);
        let left: Vec<String> = block_on(async {
            let admin = self.target.superuser("postgres").await;
            let sql = "SELECT datname::text FROM pg_database WHERE datname LIKE $1 UNION SELECT rolname FROM pg_roles WHERE rolname LIKE $1";
            admin.query(sql, &[&pattern]).await.unwrap().iter().map(|row| row.get(0)).collect()
        });
        assert_eq!(left, Vec::<String>::new());
        self.no_file_is_left();
    }

    pub(crate) fn no_file_is_left(&self) {
        let copies = self.home.state().join("copies");
        let files: Vec<_> = fs::read_dir(copies).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        assert!(files.is_empty(), "{files:?}");
    }

    /// Returns rows of a sandbox, as text, as its superuser sees them.
    pub(crate) fn rows(&self, database: &Value, sql: &str) -> Vec<Vec<String>> {
        rows(self.target, database.as_str().unwrap(), sql)
    }
}

/// Returns rows as the superuser sees them, as text.
pub(crate) fn rows(cluster: &Cluster, database: &str, sql: &str) -> Vec<Vec<String>> {
    block_on(async {
        let client = cluster.superuser(database).await;
        let messages = client.simple_query(sql).await.unwrap();
        let rows = messages.into_iter().filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|i| row.get(i).unwrap_or("NULL").to_owned()).collect())
            }
            _ => None,
        });
        rows.collect()
    })
}

/// Returns the lines of `text` in which something of the state directory or the output holds `needle`.
pub(crate) fn files_with(home: &Home, needle: &str) -> String {
    let found =
        Command::new("grep").args(["-rIl", "--", needle]).arg(home.state()).stdin(Pipe::null()).output().unwrap();
    String::from_utf8_lossy(&found.stdout).into_owned()
}
