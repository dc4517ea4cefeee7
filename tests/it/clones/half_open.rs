//! Logins that are begun and held before their proof is sent: the server has read the role's password by then, and looks at the
//! role itself only when the proof is there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio_postgres::NoTls;

use crate::harness::{self, Cluster, block_on};

/// How many logins are begun for one role, and how far apart.
const FOR_ONE_ROLE: usize = 30;
const APART: Duration = Duration::from_millis(60);
/// What a client sends before its proof: the startup message, and the beginning of the exchange.
const BEFORE_PROOF: usize = 2;

/// What a held login waits for.
#[derive(Clone)]
struct Gate {
    open: watch::Receiver<bool>,
    /// Has a permit for each that waits.
    waiting: Arc<Semaphore>,
}

fn gate() -> (watch::Sender<bool>, Gate) {
    let (go, open) = watch::channel(false);
    (go, Gate { open, waiting: Arc::new(Semaphore::new(0)) })
}

/// Whoever knows a password that a source's code sets, and tries it on every role of a prefix.
pub(super) struct Thief {
    cluster: &'static Cluster,
    password: &'static str,
}

impl Thief {
    pub(super) fn new(cluster: &'static Cluster, password: &'static str) -> Self {
        Self { cluster, password }
    }

    /// Tries until `over`, and ends then what was begun. Returns the roles that it became, and how many logins were held.
    pub(super) fn tries(&self, prefix: &str, not: &str, over: &AtomicBool) -> (Vec<String>, usize) {
        block_on(self.tries_on(prefix, not, over))
    }

    async fn tries_on(&self, prefix: &str, not: &str, over: &AtomicBool) -> (Vec<String>, usize) {
        let admin = self.cluster.superuser("postgres").await;
        let (go, gate) = gate();
        let mut begun: Vec<JoinHandle<Option<String>>> = Vec::new();
        let mut tried: BTreeMap<String, (usize, Instant)> = BTreeMap::new();
        let mut became = Vec::new();
        let sql = "SELECT rolname::text, substring(rolname FROM '^(.*)_[^_]*$') FROM pg_roles
                   WHERE rolname ~ ('^' || $1 || '_.*_(role|f[0-9]+)$') AND rolname <> $2";
        while !over.load(Ordering::Relaxed) {
            for row in admin.query(sql, &[&prefix, &not]).await.unwrap() {
                let (role, database): (String, String) = (row.get(0), row.get(1));
                let (count, last) = tried.get(&role).copied().unwrap_or((0, Instant::now()));
                if count == FOR_ONE_ROLE || count > 0 && last.elapsed() < APART {
                    continue;
                }
                tried.insert(role.clone(), (count + 1, Instant::now()));
                begun.push(tokio::spawn(held(
                    self.cluster.port,
                    role.clone(),
                    self.password,
                    database.clone(),
                    gate.clone(),
                )));
                if self.cluster.connect(&role, self.password, &database).await.is_ok() {
                    became.push(role);
                }
            }
            tokio::task::yield_now().await;
        }
        go.send(true).unwrap();
        for login in begun {
            became.extend(login.await.unwrap());
        }
        (became, gate.waiting.available_permits())
    }
}

/// Begins a login, ends it once the gate is open, and returns the role if it got in.
async fn held(port: u16, role: String, password: &str, database: String, gate: Gate) -> Option<String> {
    let mut config = tokio_postgres::Config::new();
    config.user(&role).password(password).dbname(&database);
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let server = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let carried = tokio::spawn(carry(theirs, server, gate));
    let entered = config.connect_raw(ours, NoTls).await;
    let role = match entered {
        Ok((client, connection)) => {
            tokio::spawn(connection);
            client.query_one("SELECT session_user::text", &[]).await.ok().map(|row| row.get(0))
        }
        Err(_) => None,
    };
    carried.abort();
    role
}

async fn carry(client: DuplexStream, server: TcpStream, mut gate: Gate) {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = server.into_split();
    let answers = tokio::io::copy(&mut from_server, &mut to_client);
    let asks = async {
        let mut chunk = [0; 4096];
        for message in 0.. {
            let read = from_client.read(&mut chunk).await?;
            if read == 0 {
                break;
            }
            if message == BEFORE_PROOF {
                gate.waiting.add_permits(1);
                gate.open.wait_for(|open| *open).await.ok();
            }
            to_server.write_all(&chunk[..read]).await?;
        }
        Ok::<_, std::io::Error>(())
    };
    drop(tokio::join!(answers, asks));
}

#[test]
fn a_held_login_outlives_its_password_and_not_the_name_of_its_role() {
    let cluster = harness::cluster();
    block_on(async {
        let admin = cluster.superuser("postgres").await;
        for (sql, enters) in [("ALTER ROLE held PASSWORD 'another'", true), ("ALTER ROLE held RENAME TO other", false)]
        {
            admin.batch_execute("CREATE ROLE held LOGIN PASSWORD 'known'").await.unwrap();
            let (go, gate) = gate();
            let waiting = Arc::clone(&gate.waiting);
            let login = tokio::spawn(held(cluster.port, "held".to_owned(), "known", "postgres".to_owned(), gate));
            waiting.acquire().await.unwrap().forget();
            admin.batch_execute(sql).await.unwrap();
            go.send(true).unwrap();
            assert_eq!(login.await.unwrap().is_some(), enters, "{sql}");
            admin.batch_execute("DROP ROLE IF EXISTS held, other").await.unwrap();
        }
    });
}
