//! Servers that lie, flood, or say nothing.

use std::future::Future;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use pgsandbox::engine::postgres::{
    Auth, ChannelBinding, Endpoint, Host, NetError, SandboxSession, SessionTarget, StatementCall, WireError,
};
use pgsandbox::model::TlsMode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::cluster::{call, memory_peak_kib, target};

/// Time a statement has where a server says nothing.
const SHORT: Duration = Duration::from_millis(100);
/// What a server floods a client with; far more than the client may hold.
const FLOOD_BYTES: usize = 128 << 20;

fn message(tag: u8, body: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    out.put_u8(tag);
    out.put_u32(u32::try_from(body.len()).unwrap() + 4);
    out.put_slice(body);
    out
}

fn joined(messages: &[BytesMut]) -> BytesMut {
    messages.iter().fold(BytesMut::new(), |mut all, message| {
        all.unsplit(message.clone());
        all
    })
}

fn authentication(kind: u32, rest: &[u8]) -> BytesMut {
    message(b'R', &[&kind.to_be_bytes(), rest].concat())
}

/// What an honest server says before the first statement.
fn greeting() -> BytesMut {
    joined(&[
        authentication(0, b""),
        message(b'S', b"client_encoding\0UTF8\0"),
        message(b'S', b"standard_conforming_strings\0on\0"),
        message(b'K', &[0; 8]),
        message(b'Z', b"I"),
    ])
}

/// The answer to the statement that sets the timer.
fn armed() -> BytesMut {
    joined(&[message(b'1', b""), message(b'2', b""), message(b'C', b"SET\0"), message(b'Z', b"I")])
}

/// One column named `c`.
fn description() -> BytesMut {
    let mut body = vec![0, 1, b'c', 0];
    body.extend([0; 6]);
    body.extend(25u32.to_be_bytes());
    body.extend([0; 8]);
    joined(&[message(b'1', b""), message(b'2', b""), message(b'T', &body)])
}

fn row(value: &[u8]) -> BytesMut {
    let mut body = vec![0, 1];
    body.extend(u32::try_from(value.len()).unwrap().to_be_bytes());
    body.extend(value);
    message(b'D', &body)
}

/// Reads a startup message or a request to cancel.
async fn read_startup(tcp: &mut TcpStream) {
    let length = tcp.read_u32().await.unwrap_or(4);
    let mut rest = vec![0; length as usize - 4];
    let _read = tcp.read_exact(&mut rest).await;
}

/// Serves each connection with `serve`, and returns how it is reached.
async fn server<F, S>(serve: F) -> SessionTarget
where
    F: Fn(TcpStream) -> S + Send + 'static,
    S: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(tcp));
        }
    });
    let endpoint = Endpoint {
        host: Host::Tcp("127.0.0.1".into()),
        port,
        tls: TlsMode::Disable,
        ca_file: None,
        address: None,
        binding: ChannelBinding::Prefer,
    };
    SessionTarget { auth: Auth::AsServerAsks, connect_timeout: Duration::from_secs(1), ..target(endpoint, "owner") }
}

/// Says `said` after the startup message, then stays silent.
async fn says_at_startup(said: BytesMut) -> SessionTarget {
    server(move |mut tcp| {
        let said = said.clone();
        async move {
            read_startup(&mut tcp).await;
            tcp.write_all(&said).await.unwrap();
            let _read = tcp.read_to_end(&mut Vec::new()).await;
        }
    })
    .await
}

/// Says `said` to the first statement, and then `again`, up to [`FLOOD_BYTES`].
async fn says_to_a_statement(said: BytesMut, again: Bytes) -> SessionTarget {
    server(move |mut tcp| {
        let (said, again) = (said.clone(), again.clone());
        async move {
            read_startup(&mut tcp).await;
            if tcp.write_all(&greeting()).await.is_err() {
                return;
            }
            let mut asked = [0; 64];
            if tcp.read(&mut asked).await.unwrap_or(0) == 0 {
                return;
            }
            let mut sent = tcp.write_all(&joined(&[armed(), said])).await;
            for _ in 0..FLOOD_BYTES.checked_div(again.len()).unwrap_or(0) {
                if sent.is_ok() {
                    sent = tcp.write_all(&again).await;
                }
            }
            let _read = tcp.read_to_end(&mut Vec::new()).await;
        }
    })
    .await
}

async fn at_startup(said: BytesMut) -> WireError {
    let mut target = says_at_startup(said).await;
    target.connect_timeout = Duration::from_millis(500);
    SandboxSession::connect(&target).await.map(|_| ()).unwrap_err()
}

/// What a statement gets from a server that answers it with `said`. The session must be unusable after.
async fn to_a_statement(said: BytesMut) -> WireError {
    let target = says_to_a_statement(said, Bytes::new()).await;
    let mut session = SandboxSession::connect(&target).await.unwrap();
    let found = session.execute(&StatementCall { timeout: SHORT, ..call("SELECT 1") }).await;
    assert!(!session.is_usable());
    found.unwrap_err()
}

#[tokio::test]
async fn rows_have_the_columns_that_were_described_before_them() {
    let complete = joined(&[message(b'C', b"SELECT 1\0"), message(b'Z', b"I")]);
    let described_again = joined(&[description(), row(b"x"), description(), complete.clone()]);
    let unannounced = joined(&[message(b'n', b""), message(b'd', b"a\n"), complete]);
    for (said, expected) in [(described_again, "described twice"), (unannounced, "unannounced")] {
        let error = to_a_statement(said).await;
        assert!(error.to_string().contains(expected), "{error:?}");
    }
}

#[tokio::test]
async fn a_greeting_with_messages_of_another_length_is_refused() {
    let start = [authentication(0, b""), message(b'S', b"client_encoding\0UTF8\0")];
    let start = joined(&[joined(&start), message(b'S', b"standard_conforming_strings\0on\0")]);
    for (key, ready) in [([0; 8].as_slice(), b"IT".as_slice()), ([0; 4].as_slice(), b"I"), ([0; 12].as_slice(), b"I")] {
        let said = joined(&[start.clone(), message(b'K', key), message(b'Z', ready)]);
        let error = at_startup(said).await;
        assert!(matches!(error, WireError::Protocol(_)), "{error:?}");
    }
}

#[tokio::test]
async fn a_statement_that_failed_cannot_succeed_after_all() {
    let failed = message(b'E', b"VERROR\0C42601\0Mno\0\0");
    let complete = message(b'C', b"SELECT 0\0");
    for said in [joined(&[failed.clone(), complete.clone()]), joined(&[complete.clone(), complete])] {
        let error = to_a_statement(joined(&[said, message(b'Z', b"I")])).await;
        assert!(matches!(error, WireError::Protocol("a statement was answered twice")), "{error:?}");
    }
}

#[tokio::test]
async fn an_honest_answer_is_understood() {
    let said = joined(&[description(), row(b"x"), message(b'C', b"SELECT 1\0"), message(b'Z', b"I")]);
    let target = says_to_a_statement(said, Bytes::new()).await;
    let mut session = SandboxSession::connect(&target).await.unwrap();
    let set = session.execute(&call("SELECT 1")).await.unwrap();
    assert_eq!(set.rows[0][0].text(), Some("x"));
    assert!(session.is_usable());
}

#[tokio::test]
async fn a_server_that_hangs_at_any_point_of_the_startup_is_given_up() {
    let whole = greeting();
    for said in
        [BytesMut::new(), whole.clone().split_to(3), authentication(0, b""), whole.clone().split_to(whole.len() - 1)]
    {
        let error = at_startup(said).await;
        assert_eq!(error, WireError::Net(NetError::Timeout(Duration::from_millis(500))));
    }
}

#[tokio::test]
async fn a_startup_out_of_turn_is_refused() {
    for said in [
        message(b'Z', b"I"),
        message(b'S', b"client_encoding\0UTF8\0"),
        message(b'v', &[0; 8]),
        joined(&[authentication(0, b""), message(b'Z', b"I")]),
        joined(&[authentication(0, b""), message(b'D', b"\0\0")]),
        joined(&[authentication(0, b""), message(b'K', &[0; 8]), message(b'Z', b"T")]),
        authentication(12, b"v=xyz"),
        message(b'R', b"\0"),
        BytesMut::from(&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..]),
        BytesMut::from(&b"R\x7f\xff\xff\xff"[..]),
    ] {
        let error = at_startup(said.clone()).await;
        assert!(matches!(error, WireError::Protocol(_) | WireError::AuthMethod(_)), "{said:?}: {error}");
    }
    let encoding = joined(&[authentication(0, b""), message(b'K', &[0; 8]), message(b'Z', b"I")]);
    assert_eq!(at_startup(encoding).await, WireError::Setting("client_encoding"));
}

#[tokio::test]
async fn a_password_is_never_sent_in_the_clear() {
    assert_eq!(at_startup(authentication(3, b"")).await, WireError::AuthMethod("password"));
    assert_eq!(at_startup(authentication(5, b"salt")).await, WireError::AuthMethod("md5"));
    assert_eq!(at_startup(authentication(10, b"OTHER\0\0")).await, WireError::AuthMethod("sasl"));
}

#[tokio::test]
async fn a_server_that_does_not_know_the_password_is_an_impostor() {
    /// Challenges as SCRAM demands, and ends it with `proof`.
    async fn check(iterations: &'static str, proof: BytesMut, expected: WireError) {
        let mut target = server(move |mut tcp| {
            let proof = proof.clone();
            async move {
                read_startup(&mut tcp).await;
                tcp.write_all(&authentication(10, b"SCRAM-SHA-256\0\0")).await.unwrap();
                let mut first = vec![0; 1024];
                let n = tcp.read(&mut first).await.unwrap();
                let text = String::from_utf8_lossy(&first[..n]).into_owned();
                // A nonce may hold anything but a comma.
                let (_, nonce) = text.split_once(",r=").unwrap();
                let challenge = format!("r={nonce}server,s=c2FsdHNhbHQ=,i={iterations}");
                tcp.write_all(&authentication(11, challenge.as_bytes())).await.unwrap();
                let _answer = tcp.read(&mut first).await;
                let _sent = tcp.write_all(&joined(&[proof, greeting()])).await;
            }
        })
        .await;
        target.auth = Auth::ScramOnly;
        let found = SandboxSession::connect(&target).await.map(|_| ());
        assert_eq!(found, Err(expected));
    }
    let zeros = authentication(12, b"v=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=");
    check("4096", zeros, WireError::Impostor).await;
    check("4096", authentication(12, b"e=other-error"), WireError::Impostor).await;
    check("4096", authentication(0, b""), WireError::Impostor).await;
    let endless = WireError::Protocol("a SCRAM challenge asks for more work than any real one");
    check("4000000000", BytesMut::new(), endless).await;
}

#[tokio::test]
async fn answers_that_break_the_protocol_end_the_session() {
    let complete = || message(b'C', b"SELECT 1\0");
    let mut half = description();
    half.truncate(half.len() - 3);
    for said in [
        message(b'Z', b"I"),
        joined(&[description(), complete(), message(b'Z', b"X")]),
        joined(&[description(), complete(), message(b'Z', b"II")]),
        joined(&[description(), complete(), message(b'Z', b"")]),
        joined(&[description(), message(b'C', b"no end"), message(b'Z', b"I")]),
        joined(&[row(b"x"), complete(), message(b'Z', b"I")]),
        joined(&[description(), message(b'D', b"\0\x01\x00\x00\x00\x09x"), complete(), message(b'Z', b"I")]),
        joined(&[description(), message(b'D', b"\0\x01\x80\x00\x00\x00"), complete(), message(b'Z', b"I")]),
        joined(&[description(), message(b'D', b""), complete(), message(b'Z', b"I")]),
        joined(&[message(b'T', b"\xff\xff"), complete(), message(b'Z', b"I")]),
        joined(&[message(b'3', b""), complete(), message(b'Z', b"I")]),
        joined(&[message(b'W', b"\0\0\0"), message(b'Z', b"I")]),
        joined(&[message(b'?', b""), message(b'Z', b"I")]),
        BytesMut::from(&b"C\0\0\0\x01"[..]),
        BytesMut::from(&b"T\x7f\xff\xff\xff"[..]),
    ] {
        let error = to_a_statement(said.clone()).await;
        assert!(matches!(error, WireError::Protocol(_)), "{said:?}: {error}");
    }
    assert_eq!(to_a_statement(half).await, WireError::Timeout { ms: 100, stopped: false });
}

/// A server that says something for ever costs time, which is limited, and no memory.
#[tokio::test]
async fn floods_are_read_past() {
    let head = |tag: u8| {
        let mut head = BytesMut::from(&[tag][..]);
        head.put_u32(0x7fff_ffff);
        head
    };
    let block = |byte: u8| Bytes::from(vec![byte; 64 << 10]);
    let claimed_value = {
        let mut row = head(b'D');
        row.put_slice(b"\0\x01\x7f\xff\xff\x00");
        joined(&[description(), row])
    };
    let many = |message: BytesMut| joined(&vec![message; 64]).freeze();
    let empty = BytesMut::new;
    let floods = [
        ("notices", empty(), many(message(b'N', &[b"SNOTICE\0C00000\0M", &[b'x'; 1000][..], b"\0\0"].concat()))),
        ("settings", empty(), many(message(b'S', b"application_name\0xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\0"))),
        ("notifications", empty(), many(message(b'A', &[b'x'; 500]))),
        ("rows", description(), many(row(&[b'x'; 1000]))),
        ("empty rows", description(), many(row(b""))),
        ("a value of 2 GiB", claimed_value, block(b'x')),
        ("an error of 2 GiB", head(b'E'), block(b'M')),
        ("a notice of 2 GiB", head(b'N'), block(b'M')),
        ("a setting of 2 GiB", head(b'S'), block(b'x')),
        ("a tag of 2 GiB", head(b'C'), block(b'x')),
        ("copy data of 2 GiB", joined(&[message(b'H', b"\0\0\0"), head(b'd')]), block(b'x')),
    ];
    let flood = async |(name, said, again): (&str, BytesMut, Bytes)| {
        let target = says_to_a_statement(said, again).await;
        let mut session = SandboxSession::connect(&target).await.unwrap();
        let found = session.execute(&StatementCall { timeout: SHORT, ..call("SELECT 1") }).await;
        assert_eq!(found, Err(WireError::Timeout { ms: 100, stopped: false }), "{name}");
        assert!(!session.is_usable());
    };
    // What a first session makes the process load is not the floods'.
    flood(("rows first", description(), many(row(&[b'x'; 1000])))).await;
    let (before, since) = (memory_peak_kib(), Instant::now());
    futures_util::future::join_all(floods.map(&flood)).await;
    let grown = memory_peak_kib() - before;
    assert!(grown < 16 << 10, "memory grew by {grown} KiB");
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
}

#[tokio::test]
async fn a_read_only_frame_that_is_answered_otherwise_is_a_violation() {
    let control = |tag: &str| joined(&[message(b'1', b""), message(b'2', b""), message(b'C', tag.as_bytes())]);
    let reply = |tags: [&str; 3], statuses: [&[u8]; 2]| {
        let user = joined(&[description(), row(b"x"), message(b'C', b"SELECT 1\0")]);
        let [begin, set, rollback] = tags.map(control);
        joined(&[begin, set, user, message(b'Z', statuses[0]), rollback, message(b'Z', statuses[1])])
    };
    let check = async |said: BytesMut, holds: bool| {
        let target = server(move |mut tcp| {
            let said = said.clone();
            async move {
                read_startup(&mut tcp).await;
                tcp.write_all(&greeting()).await.unwrap();
                let _asked = tcp.read(&mut [0; 64]).await;
                tcp.write_all(&said).await.unwrap();
                let _read = tcp.read_to_end(&mut Vec::new()).await;
            }
        })
        .await;
        let mut session = SandboxSession::connect(&target).await.unwrap();
        let found = session.execute_read_only(&StatementCall { timeout: SHORT, ..call("SELECT 1") }).await;
        assert_eq!(session.is_usable(), holds);
        assert_eq!(found.map(|_| ()), if holds { Ok(()) } else { Err(WireError::ReadOnlyViolated) });
    };
    check(reply(["BEGIN\0", "SELECT 1\0", "ROLLBACK\0"], [b"T", b"I"]), true).await;
    check(reply(["SELECT 1\0", "SELECT 1\0", "ROLLBACK\0"], [b"T", b"I"]), false).await;
    check(reply(["BEGIN\0", "SELECT 0\0", "ROLLBACK\0"], [b"T", b"I"]), false).await;
    check(reply(["BEGIN\0", "SELECT 1\0", "COMMIT\0"], [b"T", b"I"]), false).await;
    check(reply(["BEGIN\0", "SELECT 1\0", "ROLLBACK\0"], [b"I", b"I"]), false).await;
    check(reply(["BEGIN\0", "SELECT 1\0", "ROLLBACK\0"], [b"E", b"I"]), false).await;
    check(reply(["BEGIN\0", "SELECT 1\0", "ROLLBACK\0"], [b"T", b"T"]), false).await;
    check(reply(["BEGIN\0", "SELECT 1\0", "ROLLBACK\0"], [b"T", b"E"]), false).await;
}

#[tokio::test]
async fn what_follows_a_request_for_tls_in_the_clear_is_refused() {
    let mut target = server(|mut tcp| async move {
        tcp.read_exact(&mut [0; 8]).await.unwrap();
        tcp.write_all(&joined(&[BytesMut::from(&b"S"[..]), greeting()])).await.unwrap();
        let _read = tcp.read_to_end(&mut Vec::new()).await;
    })
    .await;
    for tls in [TlsMode::Prefer, TlsMode::Require] {
        target.endpoint.tls = tls;
        let found = SandboxSession::connect(&target).await.map(|_| ());
        assert_eq!(found, Err(WireError::Net(NetError::Malformed)));
    }
}

#[tokio::test]
async fn what_is_longer_than_a_server_says_ends_the_session() {
    for (bytes, fits) in [(127, true), (128, true), (129, false)] {
        let mut tag = vec![b'T'; bytes];
        tag[bytes - 1] = 0;
        let said = joined(&[description(), message(b'C', &tag), message(b'Z', b"I")]);
        let mut session = SandboxSession::connect(&says_to_a_statement(said, Bytes::new()).await).await.unwrap();
        let found = session.execute(&StatementCall { timeout: SHORT, ..call("SELECT 1") }).await;
        assert_eq!(found.is_ok(), fits, "a tag of {bytes} bytes: {found:?}");
    }
    const DESCRIPTION: usize = 2 << 20;
    for (bytes, fits) in [(DESCRIPTION - 1, true), (DESCRIPTION, true), (DESCRIPTION + 1, false)] {
        // Within the bound it is read, and found to be none.
        let said = joined(&[message(b'1', b""), message(b'2', b""), message(b'T', &vec![0; bytes])]);
        let error = to_a_statement(said).await.to_string();
        assert_eq!(error.contains("malformed"), fits, "a description of {bytes} bytes: {error}");
    }
    const MESSAGE: usize = 8 << 10;
    for (bytes, fits) in [(MESSAGE - 1, true), (MESSAGE, true), (MESSAGE + 1, false)] {
        let error = at_startup(message(b'R', &vec![0; bytes])).await.to_string();
        assert_eq!(!error.contains("too long"), fits, "a startup message of {bytes} bytes: {error}");
    }
}
