//! What both SQL targets do: read a text as the program does, on a stack as large as the program's.

use std::sync::Arc;

use pgsandbox::sql::{Script, SqlError, read};

/// The stack of the threads that read SQL in the program.
const STACK_BYTES: usize = 16 << 20;
/// Texts with as many signs as this are read on a thread of their own, whose stack is the program's.
const SIGNS_ON_LARGE_STACK_MAX: usize = 120;

/// Reads a text.
pub fn ours(text: &str) -> Result<Arc<Script>, SqlError> {
    let signs = text.bytes().filter(|b| b.is_ascii_punctuation()).count();
    let words = text.split_ascii_whitespace().count();
    if signs.max(words) <= SIGNS_ON_LARGE_STACK_MAX {
        return read(text);
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, || read(text));
        match thread.expect("a thread can be started").join() {
            Ok(read) => read,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Returns the kind of an error, without places.
pub fn error_kind(error: &SqlError) -> String {
    let text = format!("{error:?}");
    text.split([' ', '{', '(']).next().unwrap_or_default().to_owned()
}
