//! Sessions that keep the server waiting, beside sessions that only seem to: who hears goes on, who does not is ended.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_util::SinkExt as _;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::time::Interval;
use tokio_postgres::{Client, NoTls};

use super::pressure::{WAIT, admin, log_in, made, url_of};
use super::program::{Home, Stdio, Transport as _};

/// Reads so much at each beat: whoever writes waits for it.
const BYTES: usize = 64 << 10;
const BEAT: Duration = Duration::from_millis(100);

/// A client that takes what it is sent slowly.
struct Slow {
    stream: TcpStream,
    beat: Interval,
    left: usize,
}

impl AsyncRead for Slow {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        if self.left == 0 {
            ready!(self.beat.poll_tick(cx));
            self.left = BYTES;
        }
        let mut bytes = [0; BYTES];
        let room = self.left.min(out.remaining());
        let mut part = ReadBuf::new(&mut bytes[..room]);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut part))?;
        self.left -= part.filled().len();
        out.put_slice(part.filled());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Slow {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

async fn log_in_slowly(url: &str) -> Client {
    let config: tokio_postgres::Config = url.parse().unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(u32::try_from(BYTES).unwrap()).unwrap();
    let port = config.get_ports()[0];
    let stream = socket.connect(([127, 0, 0, 1], port).into()).await.unwrap();
    let slow = Slow { stream, beat: tokio::time::interval(BEAT), left: 0 };
    let (client, connection) = config.connect_raw(slow, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn pid(client: &Client) -> i32 {
    client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
}

async fn is_there(admin: &Client, pid: i32) -> bool {
    !admin.query("SELECT FROM pg_stat_activity WHERE pid = $1", &[&pid]).await.unwrap().is_empty()
}

async fn wait_until_it_waits(admin: &Client, pid: i32, event: &str) {
    let until = Instant::now() + WAIT;
    let waits = "SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event = $2 AND state = 'active'";
    while admin.query(waits, &[&pid, &event]).await.unwrap().is_empty() {
        assert!(Instant::now() < until, "it never waits in {event}");
        tokio::task::yield_now().await;
    }
}

/// Sends a part of `COPY` at each beat, for ever.
async fn copies(client: &Client, table: &str, part: &'static [u8]) {
    let copy = client.copy_in::<_, bytes::Bytes>(format!("COPY {table} FROM STDIN").as_str()).await.unwrap();
    let (mut copy, mut beat) = (pin!(copy), tokio::time::interval(BEAT * 3));
    while copy.send(bytes::Bytes::from_static(part)).await.is_ok() {
        beat.tick().await;
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn a_row_that_never_ends_holds_up_no_removal() {
    let (home, runtime) = (Home::fresh(), runtime());
    let mut server = Stdio::start(&home);
    let [holder, gone] =
        ["holder", "gone"].map(|name| made(&server.call("create_database", &json!({"nameHint": name}))));
    let url = url_of(&mut server, &holder);
    let (admin, trickles, moves) = runtime.block_on(async {
        let admin = admin(&home).await;
        let (trickling, moving) = (log_in(&url).await.unwrap(), log_in(&url).await.unwrap());
        trickling.batch_execute("CREATE TABLE rows (a text); CREATE TABLE one (a text)").await.unwrap();
        let pids = (pid(&trickling).await, pid(&moving).await);
        tokio::spawn(async move { copies(&moving, "rows", b"a row\n").await });
        tokio::spawn(async move { copies(&trickling, "one", b"xxx").await });
        wait_until_it_waits(&admin, pids.0, "ClientRead").await;
        wait_until_it_waits(&admin, pids.1, "ClientRead").await;
        (admin, pids.0, pids.1)
    });
    let reply = server.call("delete_database", &json!({"databaseId": gone, "wait": true}));
    assert_eq!(reply["result"]["deleted"], true, "{reply:#}");
    runtime.block_on(async {
        assert!(!is_there(&admin, trickles).await, "who hears nothing is ended");
        assert!(is_there(&admin, moves).await, "who has rows done hears, and goes on");
    });
    runtime.shutdown_background();
    assert!(server.finish().success());
}

#[test]
fn who_takes_rows_slowly_goes_on_beside_one_that_hears_nothing() {
    let (home, runtime) = (Home::fresh(), runtime());
    let mut server = Stdio::start(&home);
    let [holder, reader, gone] =
        ["holder", "reader", "gone"].map(|name| made(&server.call("create_database", &json!({"nameHint": name}))));
    let (holder, reader) = (url_of(&mut server, &holder), url_of(&mut server, &reader));
    let (admin, _held, holds, reads) = runtime.block_on(async {
        let admin = admin(&home).await;
        let (holding, reading) = (log_in(&holder).await.unwrap(), log_in_slowly(&reader).await);
        let pids = (pid(&holding).await, pid(&reading).await);
        holding.batch_execute("CREATE TABLE unheard (a text)").await.unwrap();
        tokio::spawn(async move {
            let rows = "SELECT g::text, repeat('y', 1000) FROM generate_series(1, 10000000) g";
            reading.simple_query(rows).await.ok();
        });
        wait_until_it_waits(&admin, pids.1, "ClientWrite").await;
        let held = holding.copy_in::<_, bytes::Bytes>("COPY unheard FROM STDIN").await.unwrap();
        wait_until_it_waits(&admin, pids.0, "ClientRead").await;
        (admin, (holding, Box::pin(held)), pids.0, pids.1)
    });
    let reply = server.call("delete_database", &json!({"databaseId": gone, "wait": true}));
    assert_eq!(reply["result"]["deleted"], true, "{reply:#}");
    runtime.block_on(async {
        assert!(!is_there(&admin, holds).await, "who hears nothing is ended");
        assert!(is_there(&admin, reads).await, "who takes rows slowly hears, and goes on");
    });
    runtime.shutdown_background();
    assert!(server.finish().success());
}
