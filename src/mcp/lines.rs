//! Messages by lines: every line that asks for something is answered, also one that cannot be read.
//!
//! A line is never held beyond its limit, and none of its text is logged or said back. What is no request, and
//! comes before the first one, is dropped: it cannot end the connection. Writing is rmcp's.

use std::io;

use rmcp::RoleServer;
use rmcp::model::{ErrorCode, ErrorData, JsonRpcMessage, RequestId};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::async_rw::AsyncRwTransport;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, BufReader, Empty};

/// The longest line taken, in bytes: SQL of the largest size, escaped, with room for the rest.
const LINE_BYTES_MAX: usize = 8 << 20;
/// Where an id is looked for in a line that cannot be read: at its begin and at its end, in bytes.
const EDGE_BYTES: usize = 256;
/// What some programs write before their text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Takes messages from lines, and writes them as rmcp does.
pub(super) struct Lines<R, W: AsyncWrite> {
    input: BufReader<R>,
    /// The line so far; its first bytes, once it is too long.
    line: Vec<u8>,
    /// The last bytes of a line that is too long; `None` while it is not.
    tail: Option<Vec<u8>>,
    begun: bool,
    output: AsyncRwTransport<RoleServer, Empty, W>,
}

/// What came of a line.
enum Read {
    Message(Box<RxJsonRpcMessage<RoleServer>>),
    /// Nothing that wants an answer.
    Nothing,
    Fault(Option<RequestId>, ErrorData),
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send + 'static> Lines<R, W> {
    pub(super) fn new(input: R, output: W) -> Self {
        Self {
            input: BufReader::new(input),
            line: Vec::new(),
            tail: None,
            begun: false,
            output: AsyncRwTransport::new_server(tokio::io::empty(), output),
        }
    }

    /// Returns the next line, or `None` at the end of the input. May be dropped at any time without losing a byte.
    async fn line(&mut self) -> io::Result<Option<Read>> {
        loop {
            let available = self.input.fill_buf().await?;
            if available.is_empty() {
                // A line without an end is none.
                return Ok(None);
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(available.len(), |end| end + 1);
            let part = available.get(..taken).unwrap_or(available);
            take(&mut self.line, &mut self.tail, part);
            self.input.consume(taken);
            if end.is_some() {
                let line = std::mem::take(&mut self.line);
                return Ok(Some(match self.tail.take() {
                    None => read(&line),
                    Some(tail) => too_long(&line, &tail),
                }));
            }
        }
    }

    fn answer(&mut self, id: Option<RequestId>, error: ErrorData) {
        let sent = self.output.send(TxJsonRpcMessage::<RoleServer>::error(error, id));
        // By a task, as the reading may be dropped and taken up again at any time.
        tokio::spawn(async move { drop(sent.await) });
    }
}

impl<R, W> Transport<RoleServer> for Lines<R, W>
where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        self.output.send(item)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            match self.line().await {
                Ok(Some(Read::Message(message))) => {
                    self.begun |= matches!(*message, JsonRpcMessage::Request(_));
                    if self.begun {
                        return Some(*message);
                    }
                }
                Ok(Some(Read::Nothing)) => {}
                Ok(Some(Read::Fault(id, error))) => self.answer(id, error),
                Ok(None) => return None,
                Err(error) => {
                    tracing::error!(%error, "standard input cannot be read");
                    return None;
                }
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.output.close().await
    }
}

/// Adds a part to a line, of which only both ends are kept once it is too long.
fn take(line: &mut Vec<u8>, tail: &mut Option<Vec<u8>>, part: &[u8]) {
    if tail.is_none() {
        let ends = usize::from(part.ends_with(b"\n"));
        if line.len() + part.len() - ends <= LINE_BYTES_MAX {
            line.extend_from_slice(part);
            return;
        }
        *tail = Some(last(line).to_vec());
        line.truncate(EDGE_BYTES);
        line.shrink_to_fit();
    }
    if let Some(tail) = tail {
        tail.extend_from_slice(last(part));
        let surplus = tail.len().saturating_sub(EDGE_BYTES);
        tail.drain(..surplus);
    }
}

fn last(bytes: &[u8]) -> &[u8] {
    bytes.get(bytes.len().saturating_sub(EDGE_BYTES)..).unwrap_or_default()
}

fn too_long(head: &[u8], tail: &[u8]) -> Read {
    let message = format!("a line of more than {LINE_BYTES_MAX} bytes is not read");
    Read::Fault(id_at_the_edges(head, tail), ErrorData::new(ErrorCode::INVALID_REQUEST, message, None))
}

fn read(line: &[u8]) -> Read {
    let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line).trim_ascii();
    if line.is_empty() {
        return Read::Nothing;
    }
    if let Ok(message) = serde_json::from_slice(line) {
        return Read::Message(Box::new(message));
    }
    match serde_json::from_slice::<Value>(line) {
        Ok(value) => no_message(&value),
        Err(error) => {
            let head = line.get(..EDGE_BYTES).unwrap_or(line);
            // The parser's words hold nothing of the text.
            let message = format!("the line is not JSON: {error}");
            Read::Fault(id_at_the_edges(head, last(line)), ErrorData::new(ErrorCode::PARSE_ERROR, message, None))
        }
    }
}

/// Judges JSON that is no message of the protocol.
fn no_message(value: &Value) -> Read {
    let has = |key: &str| value.get(key).is_some();
    // Notifications are never answered, and an answer to an answer could go on for ever.
    let unanswered = if has("method") { !has("id") } else { has("result") || has("error") };
    if unanswered {
        return Read::Nothing;
    }
    let id = value.get("id").and_then(|id| serde_json::from_value(id.clone()).ok());
    let message = if value.is_array() {
        "batches are not taken; send one message on each line"
    } else {
        "no JSON-RPC 2.0 request"
    };
    Read::Fault(id, ErrorData::new(ErrorCode::INVALID_REQUEST, message, None))
}

/// Finds the id of a request that cannot be read, where it stands before or after everything nested.
fn id_at_the_edges(head: &[u8], tail: &[u8]) -> Option<RequestId> {
    id_at_the_head(&String::from_utf8_lossy(head)).or_else(|| id_at_the_tail(&String::from_utf8_lossy(tail)))
}

fn id_at_the_head(head: &str) -> Option<RequestId> {
    let mut rest = head.trim_start().strip_prefix('{')?;
    loop {
        let end = rest.find([',', '{', '[']).filter(|end| rest[*end..].starts_with(','))?;
        let (member, behind) = rest.split_at(end);
        if let Some(id) = member_id(member)? {
            return Some(id);
        }
        rest = behind.strip_prefix(',')?;
    }
}

fn id_at_the_tail(tail: &str) -> Option<RequestId> {
    let mut rest = tail.trim_end().strip_suffix('}')?;
    loop {
        let start = rest.rfind([',', '}', ']']).filter(|start| rest[*start..].starts_with(','))?;
        let (before, member) = rest.split_at(start);
        if let Some(id) = member_id(member.strip_prefix(',')?)? {
            return Some(id);
        }
        rest = before;
    }
}

/// Reads `"key": value`; `None` if it is none of a plain value, `Some(None)` if it is not the id.
fn member_id(member: &str) -> Option<Option<RequestId>> {
    let (key, value) = member.split_once(':')?;
    let (key, value) = (key.trim(), value.trim());
    let plain = |text: &str| serde_json::from_str::<Value>(text).ok();
    match (plain(key)?, plain(value)?) {
        (Value::String(key), value) if key == "id" => Some(serde_json::from_value(value).ok()),
        (Value::String(_), Value::String(_) | Value::Number(_)) => Some(None),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(line: &str) -> Option<(Option<RequestId>, i32)> {
        match read(line.as_bytes()) {
            Read::Fault(id, error) => Some((id, error.code.0)),
            Read::Message(_) | Read::Nothing => None,
        }
    }

    fn check(line: &str, id: Option<i64>, code: i32) {
        assert_eq!(fault(line), Some((id.map(RequestId::Number), code)), "{line}");
    }

    #[test]
    fn a_line_that_is_not_json_is_answered_under_its_id_where_that_is_plain() {
        check("hello", None, -32700);
        check(r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"a":"#, Some(7), -32700);
        check(r#"{"method":"x","params":{"a":"\ud800"},"jsonrpc":"2.0","id":8}"#, Some(8), -32700);
        check(r#"{"method":"x","params":{"id":9,"a":"\ud800"}}"#, None, -32700);
        check(r#"{"method":"x","params":{"a":"\ud800","id":9}}"#, None, -32700);
        check(r#"{"method":"x","params":{"a":"\ud800","b":",\"id\":5}"}}"#, None, -32700);
        let deep = "[".repeat(200);
        check(&format!(r#"{{"id":3,"method":"ping","params":{deep}"#), Some(3), -32700);
    }

    #[test]
    fn json_that_is_no_request_is_answered_and_notifications_and_answers_are_not() {
        check("null", None, -32600);
        check("[]", None, -32600);
        check(r#"{"id":4,"method":"ping"}"#, Some(4), -32600);
        for quiet in ["", "  ", r#"{"method":"x"}"#, r#"{"error":{"code":1,"message":"x"}}"#, r#"{"id":{},"result":1}"#]
        {
            assert_eq!(fault(quiet), None, "{quiet}");
        }
    }

    #[test]
    fn of_a_line_that_is_too_long_only_the_ends_are_kept() {
        let (mut line, mut tail) = (Vec::new(), None);
        take(&mut line, &mut tail, br#"{"method":"x","params":{"sql":""#);
        for _ in 0..2 * LINE_BYTES_MAX / 4096 {
            take(&mut line, &mut tail, &[b'x'; 4096]);
            assert!(line.len() <= LINE_BYTES_MAX);
        }
        take(&mut line, &mut tail, b"\"},\"jsonrpc\":\"2.0\",\"id\":\"a-b\"}\n");
        let tail = tail.unwrap();
        assert!(line.len() + tail.len() <= 2 * EDGE_BYTES);
        let Read::Fault(id, error) = too_long(&line, &tail) else { panic!("no fault") };
        assert_eq!((id, error.code.0), (Some(RequestId::String("a-b".into())), -32600));
    }
}
