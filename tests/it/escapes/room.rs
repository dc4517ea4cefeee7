//! One server with an attacker's sandbox, a victim's, and the operator's own things; what is tried there, and what came.
//!
//! The true state is compared after each attempt, so a difference names the attempt. An attempt is *refused before* if
//! the program did not send it, *refused by Postgres* if the server said no, and else it *ran*, without effect outside.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::pin::pin;
use std::process::Stdio as Pipe;

use futures_util::SinkExt as _;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use super::attempts::{Attempt, Effect, Way};
use super::state::{self, State};
use crate::harness::{Cluster, LIMITED, PASSWORD, SUPERUSER, temp_dir};
use crate::program::{Home, Stdio, Transport};

/// What only the victim, the operator and the superuser may ever see.
pub(super) const CANARY: &str = "canary-b41f";
/// A superuser that is not the bootstrap one, with a database of its own.
pub(super) const BOSS: &str = "boss";
/// Attempts are to be over soon, whatever they wait for.
const IMPATIENT: &str = "-c statement_timeout=10s -c lock_timeout=1s -c local_preload_libraries= \
                         -c idle_in_transaction_session_timeout=60s";
/// Where the outcomes go for a table, one JSON line each.
const REPORT: &str = "PGSANDBOX_TEST_ESCAPES_REPORT";

/// Returns whether everything is to be tried: for the proof. Beside other tests, what takes long is left out.
pub(super) fn is_whole() -> bool {
    std::env::var_os(REPORT).is_some()
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The program said no.
    Before,
    /// Postgres, or the operating system, said no.
    Below,
    /// Nobody said no.
    Ran,
}

/// A sandbox, with its credentials.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) id: String,
    pub(super) database: String,
    /// Role and password of the owner and the reader.
    pub(super) owner: (String, String),
    pub(super) reader: (String, String),
}

/// The outcomes of all attempts of one kind of server and admin.
pub(super) struct Report {
    place: String,
    attempts: usize,
    succeeded: Vec<String>,
}

/// Everything an attempt needs.
pub(super) struct Room<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) admin: &'static str,
    pub(super) attacker: Stdio,
    pub(super) victim: Stdio,
    pub(super) mine: Held,
    pub(super) theirs: Held,
    pub(super) report: Report,
    pub(super) home: Home,
    runtime: Runtime,
    files: tempfile::TempDir,
    superuser: BTreeMap<String, Client>,
    watched: Vec<i32>,
    sessions: BTreeMap<Way, Client>,
    before: State,
    next: String,
    _live: [Client; 2],
}

impl Report {
    pub(super) fn new(place: &str) -> Self {
        Self { place: place.to_owned(), attempts: 0, succeeded: Vec::new() }
    }

    /// Notes an attempt; `found` is what became true and must not.
    pub(super) fn note(&mut self, category: &str, title: &str, outcome: Outcome, found: &[String]) {
        self.attempts += 1;
        if !found.is_empty() {
            self.succeeded.push(format!("{category}: {title} ({outcome:?}): {}", found.join("; ")));
        }
        let Some(path) = std::env::var_os(REPORT) else { return };
        let line = json!({"place": self.place, "category": category, "attempt": title,
            "outcome": format!("{outcome:?}"), "succeeded": !found.is_empty()});
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        writeln!(file, "{line}").unwrap();
    }

    /// Fails if an attempt has succeeded; returns how many there were.
    pub(super) fn finish(&self) -> usize {
        assert!(self.succeeded.is_empty(), "{}: succeeded:\n{}", self.place, self.succeeded.join("\n"));
        self.attempts
    }
}

/// What no transaction has to be written for, and is asked for each time.
const FLEETING_KINDS: [&str; 7] = ["slot ", "prepared ", "session ", "advisory ", "file ", "folder ", "settings"];

impl<'a> Room<'a> {
    /// Furnishes a server: the operator's things, an admin, and a sandbox each of `mallory` and of `victor`.
    pub(super) fn new(cluster: &'a Cluster, superuser: bool) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let files = temp_dir();
        fs::set_permissions(files.path(), PermissionsExt::from_mode(0o755)).unwrap();
        fs::write(files.path().join("secret"), format!("{CANARY} in a file\n")).unwrap();
        fs::create_dir(files.path().join("out")).unwrap();
        fs::set_permissions(files.path().join("out"), PermissionsExt::from_mode(0o777)).unwrap();
        let admin = if superuser { BOSS } else { LIMITED };
        runtime.block_on(furnish(cluster));
        let home = Home::fresh();
        let config = home.path().join("config.json");
        let url = cluster.url(admin, "correct%3Ahorse%2Fbattery%40staple", admin);
        // The managed profile is not used; with it, a home can be left as any other.
        let profiles = json!([{"name": "shared", "adminUrl": url}, {"name": "local", "managedLocal": true}]);
        fs::write(&config, json!({"defaultProfile": "shared", "profiles": profiles}).to_string()).unwrap();
        fs::set_permissions(&config, PermissionsExt::from_mode(0o600)).unwrap();
        let home = home.with("PGSANDBOX_CONFIG", config.to_str().unwrap());
        let start = |owner: &str| Stdio::start_with(&home, &[("PGSANDBOX_OWNER", owner)], Pipe::inherit());
        let (mut attacker, mut victim) = (start("mallory"), start("victor"));
        let mine = create(&mut attacker, "mallory");
        let theirs = create(&mut victim, "victor");
        let secrets = format!(
            "CREATE TABLE secrets (a text); INSERT INTO secrets VALUES ('{CANARY} of victor'); \
             CREATE SEQUENCE numbers; SELECT lo_from_bytea(0, '{CANARY}')"
        );
        sql(&mut victim, &theirs, &secrets);
        let live = runtime.block_on(async {
            let theirs = cluster.connect(&theirs.owner.0, &theirs.owner.1, &theirs.database).await.unwrap();
            let operator = cluster.superuser("operator").await;
            for client in [&theirs, &operator] {
                client.batch_execute(&format!("SELECT '{CANARY} in a statement, a secret'")).await.unwrap();
            }
            [theirs, operator]
        });
        let place = format!("{}, {}", cluster.major, if superuser { "superuser" } else { "CREATEROLE" });
        let mut room = Self {
            cluster,
            admin,
            attacker,
            victim,
            mine,
            theirs,
            report: Report::new(&place),
            home,
            files,
            superuser: BTreeMap::new(),
            watched: Vec::new(),
            sessions: BTreeMap::new(),
            before: State::new(),
            next: String::new(),
            runtime,
            _live: live,
        };
        room.watch();
        room
    }

    fn watch(&mut self) {
        let places = [
            self.admin,
            "operator",
            "postgres",
            "template1",
            &self.mine.database.clone(),
            &self.theirs.database.clone(),
        ]
        .map(str::to_owned);
        self.runtime.block_on(async {
            for place in places {
                let client = self.cluster.superuser(&place).await;
                client.batch_execute("SET search_path = pg_catalog").await.unwrap();
                self.superuser.insert(place, client);
            }
            for client in &self._live {
                let row = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap();
                self.watched.push(row.get(0));
            }
            for client in &self._live {
                client.batch_execute(&format!("SELECT '{CANARY} in a statement, a secret'")).await.unwrap();
            }
        });
        self.accept();
    }

    /// Takes the present state for the true one.
    pub(super) fn accept(&mut self) {
        self.next.clear();
        self.before = self.look();
    }

    /// Takes what the attacker's own sandboxes have left in the metadata for the true state: rows of removed ones.
    pub(super) fn accept_rows_of_the_attacker(&mut self) {
        let place = self.admin.to_owned();
        let before = std::mem::take(&mut self.before);
        self.next.clear();
        let after = self.look();
        self.before = before;
        for (key, value) in after {
            if key.0 == place && key.1.starts_with("content of pgsandbox.") {
                self.before.insert(key, value);
            }
        }
    }

    /// Returns the present state. Where no transaction was begun anywhere, all that takes one is as it was.
    fn look(&mut self) -> State {
        let (superuser, runtime, admin) = (&self.superuser, &self.runtime, self.admin);
        let (mut state, next) = runtime.block_on(state::fleeting(&superuser[admin], &self.watched));
        state::files(self.files.path(), &mut state);
        if next == self.next {
            let fleeting =
                |key: &(String, String)| key.0 == "files" || FLEETING_KINDS.iter().any(|kind| key.1.starts_with(kind));
            state.extend(self.before.iter().filter(|(k, _)| !fleeting(k)).map(|(k, v)| (k.clone(), v.clone())));
        } else {
            runtime.block_on(async {
                state::shared(&superuser[admin], &mut state).await;
                for (name, client) in superuser {
                    state::database(client, name, name == admin, &mut state).await;
                }
            });
            self.next = next;
        }
        runtime.block_on(async {
            for name in [&self.mine.database, &self.theirs.database] {
                state::sequences(&superuser[name], name, &mut state).await;
            }
        });
        state
    }

    /// Tries one text in one way.
    pub(super) fn try_sql(&mut self, category: &str, attempt: &Attempt, way: &Way) {
        let sql = self.fill(&attempt.sql, way);
        let inside = matches!(way, Way::Owner(_) | Way::Write);
        let title = format!("{} [{}]", attempt.title, name(way));
        let (outcome, told) = match way {
            Way::Owner(_) | Way::Reader(_) => self.direct(way, &sql),
            Way::Write | Way::Read => {
                let input = json!({"databaseId": self.mine.id, "sql": sql, "readonly": *way == Way::Read,
                    "timeoutSeconds": 10});
                outcome_of(&self.attacker.call("run_sql", &input))
            }
        };
        self.judge(category, &title, outcome, &told, inside, &attempt.effects);
        if !attempt.effects.is_empty() {
            self.set_back();
        }
    }

    /// Tries something that is more than a text; it returns how it ended and all that it was told.
    pub(super) fn attempt(
        &mut self,
        category: &str,
        title: &str,
        body: impl FnOnce(&mut Self) -> (Outcome, String),
    ) -> String {
        let (outcome, told) = body(self);
        self.judge(category, title, outcome, &told, false, &[]);
        told
    }

    /// Compares the true state with the last one.
    fn judge(&mut self, category: &str, title: &str, outcome: Outcome, told: &str, inside: bool, effects: &[Effect]) {
        let found = self.changes(inside, effects);
        let mut succeeded: Vec<String> = found;
        if told.contains(CANARY) {
            succeeded.push(format!("was told a secret: {told}"));
        }
        self.report.note(category, title, outcome, &succeeded);
    }

    /// Returns what has changed since the last look, and must not have.
    pub(super) fn changes(&mut self, inside: bool, effects: &[Effect]) -> Vec<String> {
        let after = self.look();
        let found = state::differences(&self.before, &after)
            .into_iter()
            .filter(|((place, what), _)| {
                let its_own = inside && *place == self.mine.database;
                !(its_own || effects.iter().any(|effect| self.allows(*effect, what)))
            })
            .map(|((place, what), how)| format!("{place}: {what}: {how}"))
            .collect();
        self.before = after;
        found
    }

    fn allows(&self, effect: Effect, what: &str) -> bool {
        let roles = [&self.mine.owner.0, &self.mine.reader.0];
        let database = &self.mine.database;
        match effect {
            Effect::Password => roles.iter().any(|role| what == format!("password of {role}")),
            Effect::Settings => {
                what == format!("setting of * in {database}")
                    || roles.iter().any(|role| what.starts_with(&format!("setting of {role} in ")))
            }
            Effect::Database => what == format!("database {database}"),
            Effect::Comment => what == format!("comment on database {database}"),
            Effect::Prepared => what == "prepared mine",
        }
    }

    /// Sets back what an attempt was allowed to change, so that the next ones find the sandbox as it was.
    fn set_back(&mut self) {
        let sql = format!(
            "ALTER ROLE {0} PASSWORD '{1}'; ALTER ROLE {2} PASSWORD '{3}'; \
             ALTER DATABASE {4} CONNECTION LIMIT -1 IS_TEMPLATE false; ALTER DATABASE {4} RESET ALL; \
             ALTER ROLE {0} RESET role",
            self.mine.owner.0, self.mine.owner.1, self.mine.reader.0, self.mine.reader.1, self.mine.database
        );
        self.runtime.block_on(self.superuser[self.admin].batch_execute(&sql)).unwrap();
        self.accept();
    }

    /// Sends a text on a session of the sandbox's own role.
    pub(super) fn direct(&mut self, way: &Way, sql: &str) -> (Outcome, String) {
        let client = match self.sessions.remove(way).filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => match self.log_in(way) {
                Ok(client) => client,
                Err(error) => return (Outcome::Below, said(&error)),
            },
        };
        let (outcome, told, client) = self.runtime.block_on(async {
            let (outcome, told) = match client.simple_query(sql).await {
                Ok(messages) => (Outcome::Ran, shown(messages)),
                Err(error) => (Outcome::Below, said(&error)),
            };
            let kept =
                client.batch_execute("ROLLBACK").await.is_ok() && client.batch_execute("DISCARD ALL").await.is_ok();
            (outcome, told, kept.then_some(client))
        });
        if let Some(client) = client {
            self.sessions.insert(way.clone(), client);
        }
        (outcome, told)
    }

    /// Logs in with the sandbox's own credentials.
    pub(super) fn log_in(&self, way: &Way) -> Result<Client, tokio_postgres::Error> {
        let ((user, password), place) = match way {
            Way::Owner(place) => (&self.mine.owner, place),
            Way::Reader(place) => (&self.mine.reader, place),
            Way::Write | Way::Read => panic!("nobody logs in for {way:?}"),
        };
        let database = match place.as_deref() {
            None => &self.mine.database,
            Some("home") => self.admin,
            Some("victim") => &self.theirs.database,
            Some(other) => other,
        };
        let mut config = tokio_postgres::Config::new();
        config.host("127.0.0.1").port(self.cluster.port).user(user).password(password).dbname(database);
        config.options(IMPATIENT);
        self.runtime.block_on(async {
            let (client, connection) = config.connect(NoTls).await?;
            tokio::spawn(connection);
            Ok(client)
        })
    }

    /// Logs in as the attacker's owner, and reads nothing afterwards. What is sent by the socket is taken as the client's.
    pub(super) fn deaf(&self) -> (std::net::TcpStream, Client, impl Sized + use<>) {
        let socket = std::net::TcpStream::connect(("127.0.0.1", self.cluster.port)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut config = tokio_postgres::Config::new();
        config.user(&self.mine.owner.0).password(&self.mine.owner.1).dbname(&self.mine.database);
        let stream = socket.try_clone().unwrap();
        let (client, connection) = self.runtime.block_on(async {
            let stream = tokio::net::TcpStream::from_std(stream).unwrap();
            config.connect_raw(stream, NoTls).await.unwrap()
        });
        (socket, client, connection)
    }

    /// Logs the attacker in and executes a statement, and again whenever that is ended.
    pub(super) fn again_and_again(&self, database: &str, sql: &str) -> JoinHandle<()> {
        let mut config = tokio_postgres::Config::new();
        config.host("127.0.0.1").port(self.cluster.port).dbname(database);
        config.user(&self.mine.owner.0).password(&self.mine.owner.1);
        let sql = sql.to_owned();
        let (begun, begins) = oneshot::channel();
        let task = self.runtime.spawn(async move {
            let mut begun = Some(begun);
            loop {
                let Ok((client, connection)) = config.connect(NoTls).await else { continue };
                let connection = tokio::spawn(connection);
                if let Some(begun) = begun.take() {
                    begun.send(()).unwrap();
                }
                client.batch_execute(&sql).await.ok();
                // It may be one that stays open.
                connection.await.ok();
            }
        });
        self.runtime.block_on(begins).unwrap();
        task
    }

    /// Sends a table of the attacker's rows all the time, until what is returned with it is dropped.
    pub(super) fn copies_on(&self) -> (JoinHandle<Result<u64, tokio_postgres::Error>>, oneshot::Sender<()>) {
        let client = self.log_in(&Way::Owner(None)).unwrap();
        let (stop, mut stopped) = oneshot::channel::<()>();
        let task = self.runtime.spawn(async move {
            client.batch_execute("CREATE TABLE IF NOT EXISTS moving (a text)").await?;
            let mut rows = pin!(client.copy_in::<_, bytes::Bytes>("COPY moving FROM STDIN").await?);
            let row = bytes::Bytes::from(format!("{}\n", "x".repeat(8000)));
            let mut pace = tokio::time::interval(std::time::Duration::from_millis(30));
            while stopped.try_recv() == Err(TryRecvError::Empty) {
                rows.send(row.clone()).await?;
                pace.tick().await;
            }
            rows.finish().await
        });
        (task, stop)
    }

    /// Does something as the superuser.
    pub(super) fn superuser(&self, place: &str, sql: &str) -> String {
        let rows = self.runtime.block_on(self.superuser[place].simple_query(sql)).unwrap();
        shown(rows)
    }

    /// Does what must be noticed, as the superuser.
    pub(super) fn plant(&self, place: &str, sql: &str) {
        let sql = sql.replace("{out}", &format!("{}/out", self.files.path().display()));
        self.runtime.block_on(self.superuser[place].batch_execute(&sql)).unwrap();
    }

    /// Waits for something on the room's runtime.
    pub(super) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Runs what the owner makes before, and takes it for the state to be kept.
    pub(super) fn set_up(&mut self, text: &str) {
        if !text.is_empty() {
            let client = self.log_in(&Way::Owner(None)).unwrap();
            self.runtime.block_on(client.batch_execute(text)).unwrap_or_else(|e| panic!("{e:?}"));
        }
        self.accept();
    }

    fn fill(&self, sql: &str, way: &Way) -> String {
        let me = if matches!(way, Way::Reader(_) | Way::Read) { &self.mine.reader.0 } else { &self.mine.owner.0 };
        let path = self.files.path().display();
        let port = self.cluster.port.to_string();
        let values = [
            ("me", me.as_str()),
            ("owner", &self.mine.owner.0),
            ("owner_bare", &self.mine.owner.0),
            ("reader", &self.mine.reader.0),
            ("db", &self.mine.database),
            ("victim_owner", &self.theirs.owner.0),
            ("victim_reader", &self.theirs.reader.0),
            ("victim_db", &self.theirs.database),
            ("victim_id", &self.theirs.id),
            ("admin", self.admin),
            ("super", SUPERUSER),
            ("home", self.admin),
            ("port", &port),
        ];
        let mut text = sql.replace("{file}", &format!("{path}/secret")).replace("{out}", &format!("{path}/out"));
        for (name, value) in values {
            text = text.replace(&format!("{{{name}}}"), value);
        }
        text
    }
}

async fn furnish(cluster: &Cluster) {
    let client = cluster.superuser("postgres").await;
    for sql in [
        format!("CREATE ROLE {BOSS} LOGIN SUPERUSER PASSWORD '{PASSWORD}'"),
        format!("CREATE DATABASE {BOSS} OWNER {BOSS}"),
        "CREATE DATABASE operator".to_owned(),
        "REVOKE CONNECT ON DATABASE operator FROM PUBLIC".to_owned(),
        "SELECT pg_create_physical_replication_slot('operator_slot')".to_owned(),
    ] {
        client.batch_execute(&sql).await.unwrap();
    }
    let operator = cluster.superuser("operator").await;
    let secrets = format!("CREATE TABLE secrets (a text); INSERT INTO secrets VALUES ('{CANARY} of the operator')");
    operator.batch_execute(&secrets).await.unwrap();
    operator
        .batch_execute("BEGIN; CREATE TABLE prepared_before (a int); PREPARE TRANSACTION 'of the operator'")
        .await
        .unwrap();
}

fn create(stdio: &mut Stdio, hint: &str) -> Held {
    let labels = json!({"note": format!("{CANARY} in a label")});
    let labels = if hint == "victor" { labels } else { json!({}) };
    let reply = stdio.call("create_database", &json!({"nameHint": hint, "labels": labels}));
    assert_eq!(reply["ok"], true, "{reply:#}");
    let id = reply["result"]["databaseId"].as_str().unwrap().to_owned();
    let mut credentials = |access: &str| {
        let asked = json!({"databaseId": id, "includeCredentials": true, "access": access});
        let reply = stdio.call("get_connection_string", &asked);
        let url = reply["result"]["connectionString"].as_str().unwrap_or_else(|| panic!("{reply:#}"));
        let (user, rest) = url.split_once("://").unwrap().1.split_once(':').unwrap();
        (user.to_owned(), rest.split_once('@').unwrap().0.to_owned())
    };
    let (owner, reader) = (credentials("owner"), credentials("readonly"));
    Held { id, database: reply["result"]["databaseName"].as_str().unwrap().to_owned(), owner, reader }
}

fn sql(stdio: &mut Stdio, of: &Held, text: &str) {
    let reply = stdio.call("run_sql", &json!({"databaseId": of.id, "sql": text}));
    assert_eq!(reply["ok"], true, "{reply:#}");
}

/// Returns how a call ended, and all it was told.
pub(super) fn outcome_of(reply: &Value) -> (Outcome, String) {
    let outcome = match (reply["ok"] == true, reply["errors"][0].get("sqlstate").is_some_and(|s| !s.is_null())) {
        (true, _) => Outcome::Ran,
        (false, true) => Outcome::Below,
        (false, false) => Outcome::Before,
    };
    (outcome, reply.to_string())
}

fn name(way: &Way) -> String {
    let (who, place) = match way {
        Way::Owner(place) => ("owner", place.as_deref()),
        Way::Reader(place) => ("reader", place.as_deref()),
        Way::Write => ("run_sql", None),
        Way::Read => ("run_sql, read-only", None),
    };
    place.map_or_else(|| who.to_owned(), |place| format!("{who} in {place}"))
}

fn said(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), |e| format!("{e:?}"))
}

fn shown(messages: Vec<SimpleQueryMessage>) -> String {
    let rows = messages.into_iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|i| row.get(i).unwrap_or("").to_owned()).collect::<Vec<_>>().join("\t"))
        }
        _ => None,
    });
    rows.collect::<Vec<_>>().join("\n")
}
