//! Postgres' own scanner and parser, in a process of their own (`oracle.c`).

use std::io::{BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Questions that are sent before their answers are read: they fit a pipe.
const AHEAD_BYTES_MAX: usize = 16 << 10;

/// How Postgres reads a text.
pub struct Answer {
    /// The parse tree, or the parser's error.
    pub parsed: Result<Node, String>,
    /// The tokens, comments among them, unless the scanner refuses the text.
    pub scanned: Option<Vec<Lexeme>>,
}

/// A token as Postgres cuts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lexeme {
    pub start: usize,
    pub end: usize,
    pub token: u64,
    /// Zero for what is no keyword.
    pub keyword: u64,
}

impl Lexeme {
    /// Returns whether it is a comment (`SQL_COMMENT`, `C_COMMENT`).
    pub fn is_comment(&self) -> bool {
        matches!(self.token, 275 | 276)
    }
}

pub struct Oracle {
    path: String,
    running: Running,
    /// Texts that ended the process: the scanner of a server would have refused or survived them.
    pub died: u64,
}

struct Running {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Running {
    fn start(path: &str) -> Self {
        let mut child = Command::new(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("the oracle `{path}` cannot be started: {error}"));
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, input, output }
    }

    fn part(&mut self) -> std::io::Result<(bool, Vec<u8>)> {
        let mut head = [0; 5];
        self.output.read_exact(&mut head)?;
        let [accepted, length @ ..] = head;
        let mut bytes = vec![0; u32::from_ne_bytes(length) as usize];
        self.output.read_exact(&mut bytes)?;
        Ok((accepted == 1, bytes))
    }
}

impl Oracle {
    /// Starts the program at `PGSANDBOX_FUZZ_ORACLE`.
    pub fn start() -> Self {
        let path =
            std::env::var("PGSANDBOX_FUZZ_ORACLE").unwrap_or_else(|_| panic!("PGSANDBOX_FUZZ_ORACLE is not set"));
        Self { running: Running::start(&path), path, died: 0 }
    }

    /// Asks about several texts, none with a NUL; `None` for one that ended the process.
    pub fn ask(&mut self, texts: &[&str]) -> Vec<Option<Answer>> {
        let mut answers = Vec::with_capacity(texts.len());
        while answers.len() < texts.len() {
            let rest = &texts[answers.len()..];
            let mut bytes = 0;
            let some = rest.iter().take_while(|text| {
                bytes += text.len() + 4;
                bytes <= AHEAD_BYTES_MAX
            });
            let count = some.count().max(1);
            if !self.ask_some(&rest[..count], &mut answers) {
                answers.push(None);
                self.died += 1;
                let _gone = self.running.child.wait();
                self.running = Running::start(&self.path);
            }
        }
        answers
    }

    fn ask_some(&mut self, texts: &[&str], answers: &mut Vec<Option<Answer>>) -> bool {
        let mut question = Vec::new();
        for text in texts {
            question.extend((text.len() as u32).to_ne_bytes());
            question.extend(text.as_bytes());
        }
        if self.running.input.write_all(&question).and_then(|()| self.running.input.flush()).is_err() {
            return false;
        }
        for _ in texts {
            let (Ok(parsed), Ok(scanned)) = (self.running.part(), self.running.part()) else { return false };
            let parsed = match parsed {
                (true, json) => Ok(Node::read(&json)),
                (false, message) => Err(String::from_utf8_lossy(&message).into_owned()),
            };
            answers.push(Some(Answer { parsed, scanned: scanned.0.then(|| lexemes(&scanned.1)) }));
        }
        true
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let _gone = self.running.child.kill();
        let _waited = self.running.child.wait();
    }
}

/// Reads a `ScanResult` of libpg_query: field 2 is a token of start, end, token and keyword kind, all varints.
fn lexemes(bytes: &[u8]) -> Vec<Lexeme> {
    let mut all = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let tag = varint(&mut rest);
        if tag & 7 == 0 {
            varint(&mut rest);
            continue;
        }
        let length = varint(&mut rest) as usize;
        let (mut message, after) = rest.split_at(length.min(rest.len()));
        rest = after;
        let mut lexeme = Lexeme { start: 0, end: 0, token: 0, keyword: 0 };
        while !message.is_empty() {
            let field = varint(&mut message) >> 3;
            let value = varint(&mut message);
            match field {
                1 => lexeme.start = value as usize,
                2 => lexeme.end = value as usize,
                4 => lexeme.token = value,
                5 => lexeme.keyword = value,
                _ => {}
            }
        }
        if tag >> 3 == 2 {
            all.push(lexeme);
        }
    }
    all
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    let mut shift = 0;
    while let Some((byte, rest)) = bytes.split_first() {
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

/// A JSON value without anything that a parse tree has not. Trees are deep: read and walked on a large stack.
#[derive(Debug)]
pub enum Node {
    Object(Vec<(String, Node)>),
    Array(Vec<Node>),
    Text(String),
    Number(i64),
    Flag(bool),
    Null,
}

impl Node {
    /// Reads the JSON that libpg_query writes, which is well-formed.
    fn read(json: &[u8]) -> Self {
        let mut reader = Json { bytes: json, at: 0 };
        reader.value()
    }

    pub fn get(&self, key: &str) -> Option<&Node> {
        match self {
            Self::Object(fields) => fields.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key) {
            Some(Self::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub fn number(&self, key: &str) -> i64 {
        match self.get(key) {
            Some(Self::Number(number)) => *number,
            _ => 0,
        }
    }

    pub fn is_set(&self, key: &str) -> bool {
        matches!(self.get(key), Some(Self::Flag(true)))
    }

    pub fn items(&self) -> &[Node] {
        match self {
            Self::Array(items) => items,
            _ => &[],
        }
    }

    /// Returns the kind and the fields of a node in its wrapper.
    pub fn unwrapped(&self) -> Option<(&str, &Node)> {
        match self {
            Self::Object(fields) if fields.len() == 1 => fields.first().map(|(kind, node)| (kind.as_str(), node)),
            _ => None,
        }
    }

    /// Returns the texts of a list of `String` nodes.
    pub fn strings(&self) -> Vec<&str> {
        self.items().iter().filter_map(|item| item.get("String").and_then(|s| s.text("sval"))).collect()
    }
}

struct Json<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Json<'_> {
    fn peek(&self) -> u8 {
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    fn value(&mut self) -> Node {
        match self.peek() {
            b'{' => {
                self.at += 1;
                let mut fields = Vec::new();
                while !matches!(self.peek(), b'}' | 0) {
                    let key = self.text();
                    self.at += 1;
                    fields.push((key, self.value()));
                    self.at += usize::from(self.peek() == b',');
                }
                self.at += 1;
                Node::Object(fields)
            }
            b'[' => {
                self.at += 1;
                let mut items = Vec::new();
                while !matches!(self.peek(), b']' | 0) {
                    items.push(self.value());
                    self.at += usize::from(self.peek() == b',');
                }
                self.at += 1;
                Node::Array(items)
            }
            b'"' => Node::Text(self.text()),
            _ => {
                let start = self.at;
                while !matches!(self.peek(), b',' | b'}' | b']' | 0) {
                    self.at += 1;
                }
                match &self.bytes[start..self.at] {
                    b"true" => Node::Flag(true),
                    b"false" => Node::Flag(false),
                    number => {
                        let number = std::str::from_utf8(number).ok().and_then(|n| n.parse::<f64>().ok());
                        number.map_or(Node::Null, |n| Node::Number(n as i64))
                    }
                }
            }
        }
    }

    fn text(&mut self) -> String {
        self.at += 1;
        let mut bytes = Vec::new();
        loop {
            let byte = self.peek();
            self.at += 1;
            match byte {
                b'"' | 0 => break,
                b'\\' => {
                    let escaped = self.peek();
                    self.at += 1;
                    match escaped {
                        b'n' => bytes.push(b'\n'),
                        b't' => bytes.push(b'\t'),
                        b'r' => bytes.push(b'\r'),
                        b'b' => bytes.push(8),
                        b'f' => bytes.push(12),
                        b'u' => {
                            let digits = self.bytes.get(self.at..self.at + 4).unwrap_or_default();
                            let code = std::str::from_utf8(digits).ok().and_then(|d| u32::from_str_radix(d, 16).ok());
                            let c = code.and_then(char::from_u32).unwrap_or('\u{fffd}');
                            bytes.extend(c.encode_utf8(&mut [0; 4]).as_bytes());
                            self.at += 4;
                        }
                        other => bytes.push(other),
                    }
                }
                _ => bytes.push(byte),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
