//! Database URLs.
//!
//! What holds: a URL is refused, or its host, port, database and user are those that libpq's rules give it; what is
//! printed reads as the same server, database and user; and the password is in no output.
//!
//! The rules, after libpq's documentation ("Connection URIs"): after the scheme, what comes before the first `@` (where one
//! comes before the first `/`) is user and password, divided by the first `:`. A host in `[…]` goes to the `]`, any other
//! to the next `:`, `/` or `?`; a port goes to the next `/` or `?`; a database to the next `?`; then parameters, divided by
//! `&`, which count more than what came before. All parts are percent-decoded. An absolute path is a socket's directory.

use pgsandbox::engine::postgres::{Host, PostgresUrl, UrlOrigin};

use crate::driver::{Checked, Target};
use crate::mutate;
use crate::rng::Rng;

/// Every password of the seeds and of made URLs holds it.
const SECRET: &str = "hunter2hunter2";
const WORDS: &[&str] = &[
    "postgresql://",
    "postgres://",
    "user",
    ":",
    "@",
    "/",
    "?",
    "&",
    "=",
    "#",
    "%40",
    "%2F",
    "%3a",
    "%00",
    "%",
    "%ff",
    "%25",
    "[",
    "]",
    "[::1]",
    "::1",
    "localhost",
    "127.0.0.1",
    "5432",
    "0",
    "65536",
    "+5432",
    " ",
    "db",
    "host=",
    "port=",
    "user=",
    "dbname=",
    "password=",
    "sslmode=",
    "require",
    "disable",
    "verify-full",
    "sslrootcert=",
    "system",
    "connect_timeout=",
    "10",
    "application_name=x",
    "target_session_attrs=any",
    "options=",
    "/var/run/postgresql",
    "%2Fvar%2Frun",
    ",",
    "host",
    "é",
    "..",
    "-",
    "_",
    "hunter2hunter2",
    ":hunter2hunter2@",
    "?hunter2hunter2",
    "hunter2%68unter2",
];

pub struct Url;

impl Target for Url {
    fn make(&mut self, rng: &mut Rng, kept: &[Vec<u8>]) -> Vec<u8> {
        let pick = |rng: &mut Rng| mutate::as_text(&kept[rng.below(kept.len())]);
        let text = if rng.once_in(3) { made(rng) } else { pick(rng) };
        if rng.once_in(4) {
            return text.into_bytes();
        }
        let other = pick(rng);
        let mut changed = mutate::text(rng, &text, &other, WORDS);
        changed.truncate(changed.floor_char_boundary(9000));
        changed.into_bytes()
    }

    fn check(&mut self, input: &[u8]) -> Checked {
        let text = mutate::as_text(input);
        let mut outcome = String::new();
        for origin in [UrlOrigin::Operator, UrlOrigin::Caller] {
            match PostgresUrl::parse(&text, origin) {
                Ok(url) => {
                    outcome.push_str(&check_read(&text, &url, origin)?);
                }
                Err(error) => {
                    let shown = format!("{error} {error:?}");
                    // Where the mark is in no place of a password, it is no secret.
                    if shown.contains(SECRET) {
                        return Err(format!("leak: the error says `{error}`"));
                    }
                    let kind = format!("{error:?}");
                    outcome.push_str(kind.split(['(', ' ', '{']).next().unwrap_or_default());
                }
            }
        }
        Ok(outcome)
    }
}

fn check_read(text: &str, url: &PostgresUrl, origin: UrlOrigin) -> Checked {
    let theirs = rules(text);
    let Some(theirs) = theirs else { return Ok("read, not by libpq".to_owned()) };
    let host = match &url.endpoint.host {
        Host::Tcp(host) => host.clone(),
        Host::Unix(dir) => dir.display().to_string(),
    };
    let user = &url.credentials.user;
    let expected_host = if theirs.host.is_empty() { "/var/run/postgresql".to_owned() } else { theirs.host.clone() };
    let address =
        |host: &str| host.parse::<std::net::Ipv6Addr>().map_or_else(|_| host.to_lowercase(), |a| a.to_string());
    if address(&host) != address(&expected_host) {
        return Err(format!("host: `{host}` for us, `{expected_host}` by the rules"));
    }
    let expected_port = if theirs.port.is_empty() { "5432" } else { theirs.port.as_str() };
    if Some(url.endpoint.port) != expected_port.parse().ok() {
        return Err(format!("port: {} for us, `{expected_port}` by the rules", url.endpoint.port));
    }
    if *user != theirs.user {
        return Err(format!("user: `{user}` for us, `{}` by the rules", theirs.user));
    }
    let expected_database = if theirs.database.is_empty() { &theirs.user } else { &theirs.database };
    if url.database != *expected_database {
        return Err(format!("database: `{}` for us, `{expected_database}` by the rules", url.database));
    }
    let password = url.credentials.password.as_ref().map(|p| p.expose().to_owned()).unwrap_or_default();
    if password != theirs.password {
        return Err("password: another than by the rules".to_owned());
    }
    let shown = format!("{url}");
    let debug = format!("{url:?}");
    let named = [host.as_str(), user.as_str(), url.database.as_str()].iter().any(|part| part.contains(SECRET));
    let named = named || url.endpoint.ca_file.as_ref().is_some_and(|file| file.display().to_string().contains(SECRET));
    if !named && (shown.contains(SECRET) || debug.contains(SECRET)) {
        return Err(format!("leak: a URL is shown as `{shown}`"));
    }
    match PostgresUrl::parse(&shown, UrlOrigin::Operator) {
        Ok(again)
            if again.endpoint.host == url.endpoint.host
                && again.endpoint.port == url.endpoint.port
                && again.database == url.database
                && again.credentials.user == *user => {}
        Ok(again) => return Err(format!("round trip: `{shown}` reads as {again:?}")),
        Err(error) => return Err(format!("round trip: `{shown}` does not read: {error}")),
    }
    Ok(format!("{origin:?} {} {} {}", host.starts_with('/'), password.is_empty(), format!("{:?}", url.endpoint.tls)))
}

#[derive(Default)]
struct Parts {
    user: String,
    password: String,
    host: String,
    port: String,
    database: String,
}

/// Reads a URL by the rules of this file's head; `None` where they refuse it.
fn rules(text: &str) -> Option<Parts> {
    let mut rest = text.strip_prefix("postgresql://").or_else(|| text.strip_prefix("postgres://"))?;
    let mut parts = Parts::default();
    let before_path = rest.find('/').unwrap_or(rest.len());
    if let Some(at) = rest.find('@').filter(|at| *at < before_path) {
        let (user, password) = rest[..at].split_once(':').unwrap_or((&rest[..at], ""));
        parts.user = decode(user)?;
        parts.password = decode(password)?;
        rest = &rest[at + 1..];
    }
    let until = |text: &str, ends: &[char]| text.find(ends).unwrap_or(text.len());
    let (host, after) = match rest.strip_prefix('[') {
        Some(inner) => inner.split_once(']')?,
        None => rest.split_at(until(rest, &[':', '/', '?'])),
    };
    if !(after.is_empty() || after.starts_with([':', '/', '?'])) {
        return None;
    }
    parts.host = decode(host)?;
    rest = after;
    if let Some(after) = rest.strip_prefix(':') {
        let (port, after) = after.split_at(until(after, &['/', '?']));
        parts.port = decode(port)?;
        rest = after;
    }
    if let Some(after) = rest.strip_prefix('/') {
        let (database, after) = after.split_at(until(after, &['?']));
        parts.database = decode(database)?;
        rest = after;
    }
    for pair in rest.strip_prefix('?').unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=')?;
        if value.contains('=') {
            return None;
        }
        let (name, value) = (decode(name)?, decode(value)?);
        let part = match name.as_str() {
            "host" => &mut parts.host,
            "port" => &mut parts.port,
            "user" => &mut parts.user,
            "password" => &mut parts.password,
            "dbname" => &mut parts.database,
            _ => continue,
        };
        *part = value;
    }
    Some(parts)
}

fn decode(text: &str) -> Option<String> {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|b| char::from(b).to_digit(16));
        let value = digit(bytes.next())? * 16 + digit(bytes.next())?;
        out.push(u8::try_from(value).ok().filter(|b| *b != 0)?);
    }
    String::from_utf8(out).ok()
}

fn made(rng: &mut Rng) -> String {
    let user = rng.pick(&["u", "", "u%40v", "é", "a b", "u%25"]);
    let password = rng.pick(&[
        "",
        ":hunter2hunter2",
        ":hunter2hunter2%40x",
        ":p@hunter2hunter2",
        ":p?hunter2hunter2",
        ":p/hunter2hunter2",
        ":p#hunter2hunter2",
        ":p:hunter2hunter2",
    ]);
    let host = rng.pick(&[
        "h",
        "",
        "127.0.0.1",
        "[::1]",
        "::1",
        "DB.Example.org",
        "%2Frun",
        "h1,h2",
        "[fe80::1%25eth0]",
        "-x",
    ]);
    let port = rng.pick(&["", ":5432", ":", ":0", ":99999", ":5432,5433", ":+1"]);
    let database = rng.pick(&["", "/", "/d", "/d%2Fe", "/d%3Fhost=x", "/é", "/d/e"]);
    let mut text = format!("postgresql://{user}{password}@{host}{port}{database}");
    for n in 0..rng.below(4) {
        text.push(if n == 0 { '?' } else { '&' });
        let name = rng.pick(&[
            "host",
            "port",
            "user",
            "password",
            "dbname",
            "sslmode",
            "sslrootcert",
            "channel_binding",
            "connect_timeout",
            "application_name",
            "hostaddr",
            "service",
            "h%6Fst",
            "hunter2hunter2",
        ]);
        let value =
            rng.pick(&["", "x", "/run", "5433", "require", "hunter2hunter2", "10", "a=b", "a@b", "%26", "system"]);
        text.push_str(&format!("{name}={value}"));
    }
    text
}
