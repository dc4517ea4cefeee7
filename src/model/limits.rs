//! The program's own bounds, each with its reason. Policies and profiles only lower them.

/// The longest SQL text of one call, in bytes: above it, reading costs more than any agent needs.
pub const SQL_BYTES_MAX: usize = 1 << 20;
/// The deepest nesting of comments; Postgres' own lexer is quadratic in it and ignores timeouts there.
pub const SQL_COMMENT_DEPTH_MAX: usize = 32;
/// The longest run of operator characters; the same reason.
pub const SQL_OPERATOR_RUN_MAX: usize = 63;
/// The most tokens of one statement: bounds the parser's work and the depth of its trees.
pub const SQL_TOKENS_PER_STATEMENT_MAX: usize = 50_000;
/// The most statements of one call.
pub const SQL_STATEMENTS_MAX: usize = 10_000;
/// The largest single value that is returned, in bytes; larger ones are drained and marked as cut.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// Row data of one reply, in bytes, unless a policy lowers it.
pub const REPLY_BYTES_DEFAULT: u64 = 256 << 10;
/// The most row data of one reply that a policy may allow, in bytes.
pub const REPLY_BYTES_MAX: u64 = 4 << 20;
/// The most that one reply says around the rows of its results, in bytes: tags, columns, failures of statements.
pub const REPLY_FRAME_BYTES_MAX: usize = 2 << 20;
/// Rows returned per result set unless asked otherwise.
pub const ROWS_DEFAULT: u64 = 100;
/// The most rows that can be asked for.
pub const ROWS_MAX: u64 = 1000;
/// Time for the statements of one call unless asked otherwise.
pub const STATEMENT_TIMEOUT_MS_DEFAULT: u64 = 30_000;
/// The most time that can be asked for.
pub const STATEMENT_TIMEOUT_MS_MAX: u64 = 300_000;
/// The most labels of one sandbox.
pub const LABELS_MAX: usize = 32;
/// The longest label key or value, in bytes.
pub const LABEL_BYTES_MAX: usize = 128;
/// The most extensions of one create call.
pub const EXTENSIONS_MAX: usize = 25;
/// The longest name hint, owner or idempotency key, in bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// A sandbox's time to live unless asked otherwise.
pub const TTL_MINUTES_DEFAULT: u64 = 240;
/// The longest life of a sandbox, from its creation, unless a profile sets another.
pub const TTL_MINUTES_MAX_DEFAULT: u64 = 1440;
/// The most sandboxes in one page of a list.
pub const LIST_PAGE_MAX: usize = 200;
/// The most data that COPY FROM STDIN takes from a call, in bytes.
pub const STDIN_BYTES_MAX: usize = 1 << 20;
/// The most parameters of one statement; the protocol counts them in 16 bits.
pub const PARAMS_MAX: usize = 1000;
/// The longest that one failure says about where in the server's work it arose, in bytes: some ten calls deep.
pub const ERROR_CONTEXT_BYTES_MAX: usize = 2 << 10;
/// The most notices kept of one call.
pub const NOTICES_MAX: usize = 50;
