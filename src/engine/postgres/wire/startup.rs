//! From an open stream to a session: the startup message, authentication, and the server's first words.
//!
//! A password is proved by SCRAM, which makes the server prove itself as well; with TLS the proof is bound to the
//! server's certificate. Weaker methods are used only over connections nobody can listen to, and not at all under
//! [`Auth::ScramOnly`].

use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::authentication::{md5_hash, sasl};
use postgres_protocol::message::backend::{
    AUTHENTICATION_TAG, BACKEND_KEY_DATA_TAG, ERROR_RESPONSE_TAG, NOTICE_RESPONSE_TAG, PARAMETER_STATUS_TAG,
    READY_FOR_QUERY_TAG,
};
use postgres_protocol::message::frontend;

use super::channel::{Channel, Header};
use super::connection::{Pinned, TEXT_BYTES_MAX, TxStatus};
use super::message::{Fields, Pieces};
use super::{ServerError, WireError};
use crate::engine::postgres::net::{self, NetError, Stream};
use crate::engine::postgres::{ChannelBinding, Endpoint, StartupOptions};
use crate::model::{Secret, fault};

/// The longest message of the startup that is read, in bytes.
const MESSAGE_BYTES_MAX: usize = 8 << 10;

/// The most often that a server may want a password hashed; Postgres' own way is 4096 times. Hashing holds a thread.
const SCRAM_ITERATIONS_MAX: u32 = 1_000_000;

/// Where, as whom and how a session is opened.
#[derive(Clone, Debug)]
pub struct SessionTarget {
    /// The server.
    pub endpoint: Endpoint,
    /// The database.
    pub database: String,
    /// The role.
    pub user: String,
    /// Its password.
    pub password: Secret,
    /// What the session is called in the server's views.
    pub application_name: String,
    /// Settings that outrank those of database and role. `client_encoding` and `standard_conforming_strings` are
    /// always set besides.
    pub options: StartupOptions,
    /// How the server may ask for the password.
    pub auth: Auth,
    /// Time for the whole of connecting.
    pub connect_timeout: Duration,
}

/// How a server may ask for the password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Auth {
    /// Only so that it proves itself too: for clusters that this program manages.
    ScramOnly,
    /// As the server is configured, `trust` among it; the password itself is sent only over TLS or a socket.
    AsServerAsks,
}

/// What a server said before the session began.
pub(super) struct Started {
    pub(super) channel: Channel,
    pub(super) pinned: Pinned,
    pub(super) process_id: i32,
    pub(super) key: i32,
}

/// Connects and logs in.
pub(super) async fn start(target: &SessionTarget) -> Result<Started, WireError> {
    let deadline = target.connect_timeout;
    tokio::time::timeout(fault::within(deadline), start_unbounded(target))
        .await
        .unwrap_or(Err(NetError::Timeout(deadline).into()))
}

async fn start_unbounded(target: &SessionTarget) -> Result<Started, WireError> {
    fault::pass("socket.caller-login").await.map_err(|e| WireError::Lost(std::io::Error::from(e).to_string()))?;
    greet(log_in(target).await?).await
}

/// Connects and logs in for somebody else, who reads what the server says next: it is returned with what has come of it.
pub(in crate::engine::postgres) async fn logged_in(target: &SessionTarget) -> Result<(Stream, BytesMut), WireError> {
    let deadline = target.connect_timeout;
    let channel = tokio::time::timeout(fault::within(deadline), log_in(target)).await;
    channel.unwrap_or(Err(NetError::Timeout(deadline).into())).map(Channel::into_parts)
}

async fn log_in(target: &SessionTarget) -> Result<Channel, WireError> {
    let stream = net::open(&target.endpoint, target.connect_timeout).await?;
    let mut channel = Channel::new(stream);
    let parameters = parameters(target);
    frontend::startup_message(parameters, channel.out())
        .map_err(|_| WireError::NotSendable("a name or setting of the session holds a NUL character"))?;
    authenticate(&mut channel, target).await?;
    Ok(channel)
}

fn parameters(target: &SessionTarget) -> impl Iterator<Item = (&str, &str)> {
    let own = [
        ("user", target.user.as_str()),
        ("database", target.database.as_str()),
        ("application_name", target.application_name.as_str()),
    ];
    // Last, as the last of two counts: what is read and sent here depends on them.
    let pinned = [("client_encoding", "UTF8"), ("standard_conforming_strings", "on")];
    own.into_iter().chain(target.options.iter().map(|(name, value)| (name.as_str(), value.as_str()))).chain(pinned)
}

/// Answers what the server asks until it says that the role is who it says it is.
async fn authenticate(channel: &mut Channel, target: &SessionTarget) -> Result<(), WireError> {
    let mut proved = false;
    loop {
        let body = next(channel, AUTHENTICATION_TAG).await?;
        let mut rest = Pieces(&body);
        let kind = rest.u32().ok_or(WireError::Protocol("a request for authentication is cut off"))?;
        let unbound = target.endpoint.binding == ChannelBinding::Require;
        let private = channel.stream().is_private() && target.auth == Auth::AsServerAsks;
        let password = target.password.expose().as_bytes();
        match kind {
            0 if proved => return Ok(()),
            0 | 3 | 5 if unbound => return Err(WireError::Unbound),
            0 if target.auth == Auth::AsServerAsks => return Ok(()),
            0 => return Err(WireError::AuthMethod("trust")),
            3 if private => send_password(channel, password)?,
            3 => return Err(WireError::AuthMethod("password")),
            5 if private => {
                let salt = rest.0.first_chunk().ok_or(WireError::Protocol("a salt is cut off"))?;
                let hash = md5_hash(target.user.as_bytes(), password, *salt);
                send_password(channel, hash.as_bytes())?;
            }
            5 => return Err(WireError::AuthMethod("md5")),
            10 => {
                scram(channel, rest.0, password, target.endpoint.binding).await?;
                proved = true;
            }
            7 => return Err(WireError::AuthMethod("gss")),
            9 => return Err(WireError::AuthMethod("sspi")),
            _ => return Err(WireError::AuthMethod("unknown")),
        }
    }
}

fn send_password(channel: &mut Channel, password: &[u8]) -> Result<(), WireError> {
    frontend::password_message(password, channel.out())
        .map_err(|_| WireError::NotSendable("the password holds a NUL character"))
}

/// Proves the password and has the server prove that it knows it.
async fn scram(
    channel: &mut Channel,
    mechanisms: &[u8],
    password: &[u8],
    binding: ChannelBinding,
) -> Result<(), WireError> {
    let offers = |wanted: &str| mechanisms.split(|&b| b == 0).any(|name| name == wanted.as_bytes());
    let certificate = channel.stream().channel_binding().filter(|_| binding != ChannelBinding::Disable);
    let (mechanism, binding) = match certificate {
        Some(hash) if offers(sasl::SCRAM_SHA_256_PLUS) => {
            (sasl::SCRAM_SHA_256_PLUS, sasl::ChannelBinding::tls_server_end_point(hash))
        }
        _ if binding == ChannelBinding::Require => return Err(WireError::Unbound),
        // Tells a server that does offer it that somebody in between took it away.
        Some(_) => (sasl::SCRAM_SHA_256, sasl::ChannelBinding::unrequested()),
        None => (sasl::SCRAM_SHA_256, sasl::ChannelBinding::unsupported()),
    };
    if !offers(mechanism) {
        return Err(WireError::AuthMethod("sasl"));
    }
    let too_long = |_| WireError::NotSendable("the answer to the server's challenge is too long");
    let mut scram = sasl::ScramSha256::new(password, binding);
    frontend::sasl_initial_response(mechanism, scram.message(), channel.out()).map_err(too_long)?;

    let challenge = sasl_message(channel, 11).await?;
    if iterations(&challenge).is_none_or(|count| count > SCRAM_ITERATIONS_MAX) {
        return Err(WireError::Protocol("a SCRAM challenge asks for more work than any real one"));
    }
    scram.update(&challenge).map_err(|_| WireError::Protocol("a SCRAM challenge is malformed"))?;
    frontend::sasl_response(scram.message(), channel.out()).map_err(too_long)?;

    let proof = sasl_message(channel, 12).await?;
    scram.finish(&proof).map_err(|_| WireError::Impostor)
}

/// Returns how often a challenge wants the password hashed.
fn iterations(challenge: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(challenge).ok()?;
    text.split(',').find_map(|part| part.strip_prefix("i="))?.parse().ok()
}

async fn sasl_message(channel: &mut Channel, wanted: u32) -> Result<Vec<u8>, WireError> {
    let body = next(channel, AUTHENTICATION_TAG).await?;
    let mut rest = Pieces(&body);
    match rest.u32() {
        Some(kind) if kind == wanted => Ok(rest.0.to_vec()),
        // "Accepted" in place of a proof.
        Some(0) => Err(WireError::Impostor),
        Some(_) | None => Err(WireError::Protocol("a SCRAM message is out of turn")),
    }
}

/// Reads what follows authentication, up to the first time the server is ready.
async fn greet(mut channel: Channel) -> Result<Started, WireError> {
    let mut pinned = Pinned::default();
    let mut key_data = None;
    loop {
        let Header { tag, bytes } = channel.header().await?;
        match tag {
            PARAMETER_STATUS_TAG => channel.body(bytes, MESSAGE_BYTES_MAX, |body| pinned.note(body)).await?,
            BACKEND_KEY_DATA_TAG => {
                let read = |body: &[u8]| (bytes == 8).then_some((*body.first_chunk()?, *body.last_chunk()?));
                key_data = channel.body(bytes, 8, read).await?;
            }
            NOTICE_RESPONSE_TAG => channel.skip(bytes).await?,
            ERROR_RESPONSE_TAG => return Err(refusal(&mut channel, bytes).await?),
            READY_FOR_QUERY_TAG => {
                let status = channel.body(bytes, bytes.min(2), TxStatus::read).await??;
                let (true, Some((process_id, key))) = (status == TxStatus::Idle, key_data) else {
                    return Err(WireError::Protocol("the server's greeting is incomplete"));
                };
                let (process_id, key) = (i32::from_be_bytes(process_id), i32::from_be_bytes(key));
                pinned.check()?;
                return Ok(Started { channel, pinned, process_id, key });
            }
            _ => return Err(WireError::Protocol("a message is out of turn in the greeting")),
        }
    }
}

/// Reads the next message, which has to be a `wanted`. An error is the server's refusal.
async fn next(channel: &mut Channel, wanted: u8) -> Result<Vec<u8>, WireError> {
    loop {
        let Header { tag, bytes } = channel.header().await?;
        match tag {
            ERROR_RESPONSE_TAG => return Err(refusal(channel, bytes).await?),
            NOTICE_RESPONSE_TAG => channel.skip(bytes).await?,
            _ if tag != wanted => return Err(WireError::Protocol("a message is out of turn in the startup")),
            _ if bytes > MESSAGE_BYTES_MAX => return Err(WireError::Protocol("a message of the startup is too long")),
            _ => return channel.body(bytes, bytes, <[u8]>::to_vec).await,
        }
    }
}

async fn refusal(channel: &mut Channel, bytes: usize) -> Result<WireError, WireError> {
    let error = ServerError::new(channel.body(bytes, TEXT_BYTES_MAX, Fields::read).await?);
    // Class 28: invalid authorization specification.
    Ok(if error.sqlstate().starts_with("28") { WireError::Auth(error) } else { WireError::Refused(error) })
}
