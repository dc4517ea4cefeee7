//! What makes an OTLP request over HTTP one over gRPC, and its answer one over HTTP.
//!
//! A unary call is one message each way behind five bytes, and a status in the trailers: see
//! <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>. The message is the same as over HTTP. Why there is
//! no library for it: `docs/decisions/0008-grpc-without-a-library.md`.

use bytes::{BufMut, Bytes, BytesMut};
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use opentelemetry_http::HttpError;

/// The path of the call that takes spans.
pub(super) const TRACES_PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// What stands before a message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// The status of a call that went well.
const STATUS_OK: i64 = 0;
/// Where the status is.
const STATUS: &str = "grpc-status";

/// Makes a gRPC request of an HTTP request.
pub(super) fn request(request: Request<Bytes>) -> Request<Bytes> {
    let (mut parts, message) = request.into_parts();
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    parts.headers.insert(header::TE, HeaderValue::from_static("trailers"));
    parts.headers.remove(header::CONTENT_LENGTH);
    let mut body = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    body.put_u8(0);
    // A batch is bounded far below 4 GiB.
    body.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    body.put_slice(&message);
    Request::from_parts(parts, body.freeze())
}

/// Makes an HTTP answer of a gRPC answer: its message, if the call went well.
///
/// # Errors
/// Fails if the call did not go well, or if the answer is none of gRPC. What the other side wrote is not repeated.
pub(super) fn answer(parts: Parts, trailers: Option<&HeaderMap>, body: &[u8]) -> Result<Response<Bytes>, HttpError> {
    if parts.status != StatusCode::OK {
        return Err(format!("the collector answered with HTTP status {}", parts.status.as_u16()).into());
    }
    // A call that fails at once has its status in the head.
    let status = trailers.and_then(|trailers| trailers.get(STATUS)).or_else(|| parts.headers.get(STATUS));
    let status = status.and_then(|status| status.to_str().ok()).and_then(|status| status.parse::<i64>().ok());
    match status {
        Some(STATUS_OK) => {}
        Some(status) => return Err(format!("the collector refused the spans with gRPC status {status}").into()),
        None => return Err("the collector's answer has no gRPC status".into()),
    }
    let message = match body.split_first_chunk::<PREFIX_BYTES>() {
        None if body.is_empty() => Bytes::new(),
        Some(([0, length @ ..], message)) if u32::from_be_bytes(*length) as usize == message.len() => {
            Bytes::copy_from_slice(message)
        }
        _ => return Err("the collector's answer is not one gRPC message".into()),
    };
    let mut answer = Response::new(message);
    *answer.status_mut() = parts.status;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: u16, head: &[(&'static str, &str)], trailers: &[(&'static str, &str)], body: &[u8]) -> String {
        let map = |pairs: &[(&'static str, &str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in pairs {
                map.insert(*name, HeaderValue::from_str(value).unwrap());
            }
            map
        };
        let (mut parts, ()) = Response::builder().status(status).body(()).unwrap().into_parts();
        parts.headers = map(head);
        match answer(parts, Some(&map(trailers)), body) {
            Ok(answer) => format!("{:?}", answer.body()),
            Err(fault) => fault.to_string(),
        }
    }

    #[test]
    fn an_answer_counts_only_with_its_status_and_a_whole_message() {
        let ok = [("grpc-status", "0")];
        assert_eq!(check(200, &[], &ok, b"\0\0\0\0\x02ab"), r#"b"ab""#);
        assert_eq!(check(200, &[], &ok, b"\0\0\0\0\0"), r#"b"""#);
        assert_eq!(check(200, &ok, &[], b""), r#"b"""#);
        assert!(check(200, &[("grpc-status", "14")], &[], b"").contains("gRPC status 14"));
        assert!(check(200, &[], &[("grpc-status", "8")], b"\0\0\0\0\0").contains("gRPC status 8"));
        assert!(check(503, &[], &ok, b"").contains("HTTP status 503"));
        for nothing in [&[][..], &[("grpc-status", "fine")]] {
            assert!(check(200, &[], nothing, b"\0\0\0\0\0").contains("no gRPC status"));
        }
        for torn in
            [&b"\0\0\0\0"[..], b"\0\0\0\0\x03ab", b"\x01\0\0\0\x02ab", b"\0\xff\xff\xff\xffab", b"<html></html>"]
        {
            assert!(check(200, &[], &ok, torn).contains("not one gRPC message"), "{torn:?}");
        }
    }

    #[test]
    fn a_request_has_its_message_behind_its_length() {
        let http = Request::builder().header("content-type", "application/x-protobuf").header("x-key", "k");
        let request = request(http.body(Bytes::from_static(b"spans")).unwrap());
        assert_eq!(&request.body()[..], b"\0\0\0\0\x05spans");
        let header = |name: &str| request.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(["content-type", "te", "x-key"].map(header), ["application/grpc", "trailers", "k"]);
    }
}
