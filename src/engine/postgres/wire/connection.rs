//! One conversation with a server: what is asked, in which order, and what must be answered.
//!
//! Only the extended protocol is spoken, and only with unnamed statements: a named one could be replaced by the
//! caller's SQL. A conversation that does not go as it must leaves [`Connection::in_step`] false for good.

use std::time::Duration;

use postgres_protocol::message::backend::{
    BIND_COMPLETE_TAG, CLOSE_COMPLETE_TAG, COMMAND_COMPLETE_TAG, COPY_DATA_TAG, COPY_DONE_TAG, COPY_IN_RESPONSE_TAG,
    COPY_OUT_RESPONSE_TAG, DATA_ROW_TAG, EMPTY_QUERY_RESPONSE_TAG, ERROR_RESPONSE_TAG, NO_DATA_TAG,
    NOTICE_RESPONSE_TAG, NOTIFICATION_RESPONSE_TAG, PARAMETER_STATUS_TAG, PARSE_COMPLETE_TAG, PORTAL_SUSPENDED_TAG,
    READY_FOR_QUERY_TAG, ROW_DESCRIPTION_TAG,
};
use postgres_protocol::message::frontend;

use super::channel::{Channel, Header};
use super::collect::{Collector, DESCRIPTION_BYTES_MAX};
use super::message::{Fields, Pieces, lossy};
use super::{Cell, Notice, Param, Rest, ResultLimits, ResultSet, ServerError, StatementCall, WireError};

/// Read of an error, notice or setting, in bytes; the rest is read past.
pub(super) const TEXT_BYTES_MAX: usize = 64 << 10;
/// The longest command tag, in bytes: Postgres keeps 64.
const TAG_BYTES_MAX: usize = 128;
/// Data of one CopyData message that is sent, in bytes.
const COPY_CHUNK_BYTES: usize = 64 << 10;

/// The transaction a session is in, as the server says after each call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TxStatus {
    /// None.
    Idle,
    /// One that works.
    InTransaction,
    /// One that failed and can only be rolled back.
    Failed,
}

impl TxStatus {
    pub(super) fn read(body: &[u8]) -> Result<Self, WireError> {
        match body {
            b"I" => Ok(Self::Idle),
            b"T" => Ok(Self::InTransaction),
            b"E" => Ok(Self::Failed),
            _ => Err(WireError::Protocol("the transaction's status is not known")),
        }
    }
}

/// The settings that reading SQL and results depends on, as the server last reported them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pinned {
    utf8: bool,
    standard_strings: bool,
}

impl Pinned {
    /// Takes a ParameterStatus.
    pub(super) fn note(&mut self, body: &[u8]) {
        let mut rest = Pieces(body);
        match (rest.cstr(), rest.cstr()) {
            // The server's one alias that it does not translate.
            (Some(b"client_encoding"), value) => self.utf8 = matches!(value, Some(b"UTF8" | b"UNICODE")),
            (Some(b"standard_conforming_strings"), value) => self.standard_strings = value == Some(b"on"),
            (_, _) => {}
        }
    }

    pub(super) fn check(self) -> Result<(), WireError> {
        match self {
            Self { utf8: false, .. } => Err(WireError::Setting("client_encoding")),
            Self { standard_strings: false, .. } => Err(WireError::Setting("standard_conforming_strings")),
            Self { utf8: true, standard_strings: true } => Ok(()),
        }
    }
}

/// A session's end of the conversation.
pub(super) struct Connection {
    pub(super) channel: Channel,
    pub(super) pinned: Pinned,
    pub(super) status: TxStatus,
    /// Whether the last exchange came to its end as it must.
    pub(super) in_step: bool,
    /// Whether the server's own timer was set since the last reset.
    pub(super) armed: bool,
    /// Notices of a statement that failed.
    pub(super) notices: Vec<Notice>,
}

/// What a reply consists of, rows apart.
#[derive(Debug, PartialEq)]
enum Event {
    /// A statement came to its end.
    Complete(String),
    /// The row limit ended it.
    Suspended,
    /// There was no statement.
    Empty,
    /// It failed.
    Error(ServerError),
    /// It wants data.
    CopyIn,
    /// A Close was done.
    Closed,
    /// The server is ready for the next.
    Ready(TxStatus),
}

/// How a statement ended.
type Ending = Result<Option<String>, ServerError>;

impl Connection {
    /// Runs a statement as it is.
    pub(super) async fn write_call(&mut self, call: &StatementCall<'_>) -> Result<ResultSet, WireError> {
        // Once for each use of the session, so that a `SET statement_timeout` of the caller's own counts; and as a
        // statement of its own that takes no snapshot, so that it is in nobody's way.
        let arm = !self.armed && self.status == TxStatus::Idle;
        if arm {
            self.ask(&format!("SET statement_timeout = {}", timeout_ms(call.timeout)), &[], 0)?;
            frontend::sync(self.channel.out());
        }
        self.ask_and_describe(call)?;
        match call.copy_in {
            None => frontend::sync(self.channel.out()),
            // The server reads past a Sync while it waits for COPY data, unless it has failed already: with one
            // sent ahead, nobody could tell how many answers are to come.
            Some(_) => frontend::flush(self.channel.out()),
        }
        if arm {
            self.expect("SET").await?;
            self.expect_ready(TxStatus::Idle).await?;
            self.armed = true;
        }
        let mut kept = Collector::new(call.limits);
        let ending = match call.copy_in {
            None => self.ending(&mut kept).await?,
            Some(data) => self.ending_with_data(&mut kept, data).await?,
        };
        self.in_step = true;
        self.conclude(kept, ending)
    }

    /// Runs a statement in a read-only transaction that is rolled back.
    pub(super) async fn read_only_call(&mut self, call: &StatementCall<'_>) -> Result<ResultSet, WireError> {
        self.framed_call("BEGIN READ ONLY", call).await
    }

    /// Runs a statement in a transaction that may write, and that is rolled back.
    pub(super) async fn rolled_back_call(&mut self, call: &StatementCall<'_>) -> Result<ResultSet, WireError> {
        self.framed_call("BEGIN", call).await
    }

    /// Runs a statement in a transaction that `begin` opens and that is rolled back.
    ///
    /// One write with two Syncs: an error skips to the first, so the statement cannot run outside the transaction.
    /// `set_config` takes the snapshot, after which the transaction's mode cannot be changed any more.
    async fn framed_call(&mut self, begin: &str, call: &StatementCall<'_>) -> Result<ResultSet, WireError> {
        let timeout = Param::Text(timeout_ms(call.timeout).to_string());
        self.ask(begin, &[], 0)?;
        self.ask("SELECT pg_catalog.set_config('statement_timeout', $1, true)", &[timeout], 0)?;
        self.ask_and_describe(&StatementCall { rest: Rest::Unfetched, ..*call })?;
        frontend::sync(self.channel.out());
        self.ask("ROLLBACK", &[], 0)?;
        frontend::sync(self.channel.out());

        let mut kept = Collector::new(call.limits);
        let ending = self.framed_ending(&mut kept).await?;
        self.control("ROLLBACK").await?.map_err(|_| WireError::ReadOnlyViolated)?;
        if self.event(&mut Collector::nothing()).await? != Event::Ready(TxStatus::Idle) {
            return Err(WireError::ReadOnlyViolated);
        }
        self.status = TxStatus::Idle;
        self.in_step = true;
        self.conclude(kept, ending)
    }

    /// Reads up to and with the first of the two times the server is ready.
    async fn framed_ending(&mut self, kept: &mut Collector) -> Result<Ending, WireError> {
        let ending = self.framed(kept).await?;
        let ready = self.event(&mut Collector::nothing()).await?;
        match (&ending, ready) {
            (Ok(_), Event::Ready(TxStatus::InTransaction)) => Ok(ending),
            // Some failures, that of a PREPARE TRANSACTION for one, end the transaction at once.
            (Err(_), Event::Ready(TxStatus::Failed | TxStatus::Idle)) => Ok(ending),
            (_, _) => Err(WireError::ReadOnlyViolated),
        }
    }

    /// Reads the answers to the frame's two statements and to the caller's.
    async fn framed(&mut self, kept: &mut Collector) -> Result<Ending, WireError> {
        for tag in ["BEGIN", "SELECT 1"] {
            if let Err(error) = self.control(tag).await? {
                return Ok(Err(error));
            }
        }
        match self.event(kept).await? {
            Event::Complete(tag) => Ok(Ok(Some(tag))),
            Event::Suspended | Event::Empty => Ok(Ok(None)),
            Event::Error(error) => Ok(Err(error)),
            // Data would be asked for only where it may be written.
            Event::CopyIn | Event::Closed | Event::Ready(_) => Err(WireError::ReadOnlyViolated),
        }
    }

    /// Reads the answer to a statement of the frame, which must be exactly `tag`.
    async fn control(&mut self, tag: &str) -> Result<Result<(), ServerError>, WireError> {
        let event = self.event(&mut Collector::nothing()).await?;
        if let Event::Error(error) = event {
            return Ok(Err(error));
        }
        if event == Event::Complete(tag.to_owned()) { Ok(Ok(())) } else { Err(WireError::ReadOnlyViolated) }
    }

    /// Runs a statement of the session's own that returns no rows, and wants exactly `tag` and `status`.
    pub(super) async fn own_statement(&mut self, text: &str, tag: &str, status: TxStatus) -> Result<(), WireError> {
        self.ask(text, &[], 0)?;
        frontend::sync(self.channel.out());
        self.expect(tag).await?;
        self.expect_ready(status).await?;
        self.in_step = true;
        Ok(())
    }

    async fn expect(&mut self, tag: &str) -> Result<(), WireError> {
        let event = self.event(&mut Collector::nothing()).await?;
        if let Event::Error(error) = event {
            return Err(WireError::Statement(error));
        }
        let answered = event == Event::Complete(tag.to_owned());
        answered.then_some(()).ok_or(WireError::Protocol("a statement of the session's own was answered otherwise"))
    }

    async fn expect_ready(&mut self, status: TxStatus) -> Result<(), WireError> {
        if self.event(&mut Collector::nothing()).await? != Event::Ready(status) {
            return Err(WireError::Protocol("the session is not in the state it must be in"));
        }
        self.status = status;
        Ok(())
    }

    /// Reads how a statement ended, where a Sync was sent after it.
    async fn ending(&mut self, kept: &mut Collector) -> Result<Ending, WireError> {
        let mut ending: Option<Ending> = None;
        loop {
            let event = self.event(kept).await?;
            // What ended can only fail once more, where its transaction is committed.
            if ending.is_some() && !matches!(event, Event::Error(_) | Event::Ready(_)) {
                return Err(WireError::Protocol("a statement was answered twice"));
            }
            match event {
                Event::Complete(tag) => ending = Some(Ok(Some(tag))),
                Event::Suspended | Event::Empty => ending = Some(Ok(None)),
                Event::Error(error) => ending = Some(Err(error)),
                Event::CopyIn => return self.refuse_copy().await,
                Event::Closed => return Err(WireError::Protocol("something was closed unasked")),
                Event::Ready(status) => {
                    self.status = status;
                    return ending.ok_or(WireError::Protocol("a statement was not answered"));
                }
            }
        }
    }

    /// Answers a COPY that wants data where there is none, and gets back in step.
    ///
    /// Whether the server has read past the Sync that was sent ahead cannot be known. The answer to a Close can
    /// belong to this Close only, so whatever comes before it is old.
    async fn refuse_copy(&mut self) -> Result<Ending, WireError> {
        self.send(|out| frontend::copy_fail("no data was given", out))?;
        frontend::sync(self.channel.out());
        self.send(|out| frontend::close(b'S', "", out))?;
        frontend::sync(self.channel.out());
        let mut old = Collector::nothing();
        while !matches!(self.event(&mut old).await?, Event::Closed) {}
        let Event::Ready(status) = self.event(&mut old).await? else {
            return Err(WireError::Protocol("the server is not ready after a Close"));
        };
        self.status = status;
        self.in_step = true;
        Err(WireError::CopyDataMissing)
    }

    /// Reads how a statement ended, where no Sync was sent after it, and gives it `data` if it wants some.
    async fn ending_with_data(&mut self, kept: &mut Collector, data: &[u8]) -> Result<Ending, WireError> {
        let mut synced = false;
        let mut ending = loop {
            match self.event(kept).await? {
                Event::Complete(tag) => break Ok(Some(tag)),
                Event::Suspended | Event::Empty => break Ok(None),
                Event::Error(error) => break Err(error),
                Event::CopyIn if !synced => {
                    for chunk in data.chunks(COPY_CHUNK_BYTES) {
                        self.send(|out| frontend::CopyData::new(chunk).map(|message| message.write(out)))?;
                    }
                    frontend::copy_done(self.channel.out());
                    frontend::sync(self.channel.out());
                    synced = true;
                }
                Event::CopyIn | Event::Closed | Event::Ready(_) => {
                    return Err(WireError::Protocol("an answer to a COPY is out of turn"));
                }
            }
        };
        if !synced {
            frontend::sync(self.channel.out());
        }
        let mut event = self.event(kept).await?;
        // What ended can fail once more, where its transaction is committed.
        if let Event::Error(error) = event {
            ending = Err(error);
            event = self.event(kept).await?;
        }
        let Event::Ready(status) = event else {
            return Err(WireError::Protocol("the server is not ready after a statement"));
        };
        self.status = status;
        Ok(ending)
    }

    fn conclude(&mut self, kept: Collector, ending: Ending) -> Result<ResultSet, WireError> {
        match ending {
            Ok(tag) => Ok(kept.finish(tag)),
            Err(error) => {
                self.notices = kept.into_notices();
                Err(WireError::Statement(error))
            }
        }
    }

    /// Returns the rows of a query of the session's own, as texts.
    pub(super) async fn own_query(&mut self, call: &StatementCall<'_>) -> Result<Vec<Vec<Cell>>, WireError> {
        let set = match self.status {
            TxStatus::Idle => self.read_only_call(call).await?,
            TxStatus::InTransaction | TxStatus::Failed => self.write_call(call).await?,
        };
        Ok(set.rows)
    }

    /// Reads messages up to the next that is more than a row, and keeps what comes along.
    async fn event(&mut self, kept: &mut Collector) -> Result<Event, WireError> {
        let channel = &mut self.channel;
        loop {
            let Header { tag, bytes } = channel.header().await?;
            match tag {
                DATA_ROW_TAG => kept.row(channel, bytes).await?,
                COPY_DATA_TAG => kept.copy_data(channel, bytes).await?,
                PARSE_COMPLETE_TAG | BIND_COMPLETE_TAG | NO_DATA_TAG | COPY_DONE_TAG | NOTIFICATION_RESPONSE_TAG => {
                    channel.skip(bytes).await?;
                }
                ROW_DESCRIPTION_TAG if bytes > DESCRIPTION_BYTES_MAX => {
                    return Err(WireError::Protocol("a description of columns is too long"));
                }
                ROW_DESCRIPTION_TAG => channel.body(bytes, bytes, |body| kept.describe(body)).await??,
                COPY_OUT_RESPONSE_TAG => {
                    let binary = channel.body(bytes, 1, |body| body == [1]).await?;
                    kept.describe_copy(binary)?;
                }
                NOTICE_RESPONSE_TAG => {
                    let fields = channel.body(bytes, TEXT_BYTES_MAX, Fields::read).await?;
                    kept.notice(fields);
                }
                PARAMETER_STATUS_TAG => {
                    let pinned = &mut self.pinned;
                    channel.body(bytes, TEXT_BYTES_MAX, |body| pinned.note(body)).await?;
                }
                COMMAND_COMPLETE_TAG => {
                    let tag =
                        channel.body(bytes, TAG_BYTES_MAX, |body| Pieces(body).cstr().map(<[u8]>::to_vec)).await?;
                    let tag = tag.ok_or(WireError::Protocol("a command tag is malformed"))?;
                    return Ok(Event::Complete(lossy(&tag, TAG_BYTES_MAX)));
                }
                PORTAL_SUSPENDED_TAG => return channel.skip(bytes).await.map(|()| Event::Suspended),
                EMPTY_QUERY_RESPONSE_TAG => return channel.skip(bytes).await.map(|()| Event::Empty),
                CLOSE_COMPLETE_TAG => return channel.skip(bytes).await.map(|()| Event::Closed),
                COPY_IN_RESPONSE_TAG => return channel.skip(bytes).await.map(|()| Event::CopyIn),
                READY_FOR_QUERY_TAG => {
                    return channel.body(bytes, bytes.min(2), TxStatus::read).await?.map(Event::Ready);
                }
                ERROR_RESPONSE_TAG => {
                    let error = ServerError::new(channel.body(bytes, TEXT_BYTES_MAX, Fields::read).await?);
                    return if error.is_fatal() { Err(WireError::Ended(error)) } else { Ok(Event::Error(error)) };
                }
                _ => return Err(WireError::Protocol("a message of unknown kind")),
            }
        }
    }

    /// Writes a statement that returns at most `rows_max` rows (0: all), with parameters as untyped text.
    fn ask(&mut self, text: &str, params: &[Param], rows_max: i32) -> Result<(), WireError> {
        self.send(|out| frontend::parse("", text, [], out))?;
        self.bind(params)?;
        self.send(|out| frontend::execute("", rows_max, out))
    }

    /// Writes the caller's statement, and asks what its columns are.
    fn ask_and_describe(&mut self, call: &StatementCall<'_>) -> Result<(), WireError> {
        let rows_max = match call.rest {
            // One more than is kept, so that it is known whether there are more.
            Rest::Unfetched => i32::try_from(call.limits.rows_max).unwrap_or(i32::MAX).saturating_add(1),
            Rest::Counted => 0,
        };
        self.send(|out| frontend::parse("", call.text, [], out))?;
        self.bind(call.params)?;
        self.send(|out| frontend::describe(b'P', "", out))?;
        self.send(|out| frontend::execute("", rows_max, out))
    }

    fn bind(&mut self, params: &[Param]) -> Result<(), WireError> {
        let written = frontend::bind(
            "",
            "",
            [],
            params,
            |param, out| {
                Ok(match param {
                    Param::Null => postgres_protocol::IsNull::Yes,
                    Param::Text(text) => {
                        out.extend_from_slice(text.as_bytes());
                        postgres_protocol::IsNull::No
                    }
                })
            },
            [],
            self.channel.out(),
        );
        written.map_err(|_| WireError::NotSendable("its parameters are too many or too long"))
    }

    fn send(&mut self, write: impl FnOnce(&mut bytes::BytesMut) -> std::io::Result<()>) -> Result<(), WireError> {
        write(self.channel.out()).map_err(|_| WireError::NotSendable("it is too long or holds a NUL character"))
    }
}

/// Returns a timeout as the server takes it. 0 would switch its timer off.
fn timeout_ms(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// Limits of the session's own queries: a name and a handful of numbers for each type of a row.
pub(super) const OWN_LIMITS: ResultLimits =
    ResultLimits { rows_max: 2000, bytes_max: 1 << 20, value_bytes_max: 16 << 10 };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_settings_are_followed() {
        let mut pinned = Pinned::default();
        assert_eq!(pinned.check(), Err(WireError::Setting("client_encoding")));
        pinned.note(b"client_encoding\0UTF8\0");
        pinned.note(b"standard_conforming_strings\0on\0");
        pinned.note(b"TimeZone\0UTC\0");
        assert_eq!(pinned.check(), Ok(()));
        pinned.note(b"standard_conforming_strings\0off\0");
        assert_eq!(pinned.check(), Err(WireError::Setting("standard_conforming_strings")));
        pinned.note(b"client_encoding\0UTF8");
        assert_eq!(pinned.check(), Err(WireError::Setting("client_encoding")), "cut off");
    }

    #[test]
    fn a_timeout_is_never_none() {
        assert_eq!(timeout_ms(Duration::ZERO), 1);
        assert_eq!(timeout_ms(Duration::from_micros(1)), 1);
        assert_eq!(timeout_ms(Duration::MAX), i32::MAX);
    }
}
