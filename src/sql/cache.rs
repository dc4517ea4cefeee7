//! Remembers what was read, for texts that come again.
//!
//! An entry is found by its whole text, so no two texts share one. The texts and what was made of them are bounded
//! in bytes; the entry that was longest not asked for goes first. Errors are not kept.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Script, SqlError, Statement, read};

/// Enough for some thousand statements of everyday size.
pub const CACHE_BYTES_DEFAULT: usize = 4 << 20;

/// Reads texts and remembers the latest. Can be shared between threads.
#[derive(Debug)]
pub struct Reader {
    bytes_max: usize,
    entries: Mutex<Entries>,
}

impl Reader {
    /// Builds a reader that remembers at most `cache_bytes_max` bytes; with zero it remembers nothing.
    pub fn new(cache_bytes_max: usize) -> Self {
        Self { bytes_max: cache_bytes_max, entries: Mutex::default() }
    }

    /// Reads a text, as [`read`] does.
    pub fn read(&self, text: &str) -> Result<Arc<Script>, SqlError> {
        if let Some(script) = self.with(|entries| entries.get(text)) {
            return Ok(script);
        }
        let script = read(text)?;
        self.with(|entries| entries.insert(text, &script, self.bytes_max));
        Ok(script)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Entries) -> T) -> T {
        // Each change leaves the entries usable, so a panic elsewhere under the lock does no harm.
        act(&mut self.entries.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Default for Reader {
    fn default() -> Self {
        Self::new(CACHE_BYTES_DEFAULT)
    }
}

#[derive(Debug, Default)]
struct Entries {
    by_text: HashMap<Arc<str>, Entry>,
    /// Texts by when they were last asked for.
    by_use: BTreeMap<u64, Arc<str>>,
    uses: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    script: Arc<Script>,
    last_use: u64,
    bytes: usize,
}

impl Entries {
    fn get(&mut self, text: &str) -> Option<Arc<Script>> {
        let entry = self.by_text.get_mut(text)?;
        self.uses += 1;
        if let Some(key) = self.by_use.remove(&entry.last_use) {
            self.by_use.insert(self.uses, key);
        }
        entry.last_use = self.uses;
        Some(Arc::clone(&entry.script))
    }

    fn insert(&mut self, text: &str, script: &Arc<Script>, bytes_max: usize) {
        let bytes = text.len() + size(script);
        if bytes > bytes_max || self.by_text.contains_key(text) {
            return;
        }
        while self.bytes + bytes > bytes_max {
            let Some((_, oldest)) = self.by_use.pop_first() else { break };
            if let Some(entry) = self.by_text.remove(&oldest) {
                self.bytes -= entry.bytes;
            }
        }
        self.uses += 1;
        let key: Arc<str> = text.into();
        self.by_use.insert(self.uses, Arc::clone(&key));
        self.by_text.insert(key, Entry { script: Arc::clone(script), last_use: self.uses, bytes });
        self.bytes += bytes;
    }
}

/// Counts the bytes of a script and of its place among the entries.
fn size(script: &Script) -> usize {
    const ENTRY: usize = 256;
    let strings = |statement: &Statement| {
        let facts = &statement.facts;
        let names = facts.relations.iter().map(|r| r.name.len() + size_of_val(r));
        let functions = facts.functions.iter().map(|f| f.len() + size_of_val(f));
        facts.tag.len() + names.sum::<usize>() + functions.sum::<usize>()
    };
    ENTRY + script.statements.iter().map(|s| size_of_val(s) + strings(s)).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(reader: &Reader) -> usize {
        reader.entries.lock().unwrap().bytes
    }

    #[test]
    fn a_text_that_comes_again_is_not_read_again() {
        let reader = Reader::default();
        let first = reader.read("SELECT 1").unwrap();
        assert!(Arc::ptr_eq(&first, &reader.read("SELECT 1").unwrap()));
        assert!(!Arc::ptr_eq(&first, &reader.read("SELECT 1 ").unwrap()));
    }

    #[test]
    fn the_bytes_stay_within_the_limit_and_the_oldest_goes_first() {
        let reader = Reader::new(4_000);
        let kept = reader.read("SELECT 0").unwrap();
        for n in 1..100 {
            reader.read(&format!("SELECT {n}")).unwrap();
            assert!(Arc::ptr_eq(&kept, &reader.read("SELECT 0").unwrap()), "asked for just now");
            assert!(bytes(&reader) <= 4_000);
        }
        assert!(bytes(&reader) > 0);
        let entries = reader.entries.lock().unwrap();
        assert!(!entries.by_text.contains_key("SELECT 1"));
        assert_eq!(entries.by_text.len(), entries.by_use.len());
        assert_eq!(entries.bytes, entries.by_text.values().map(|e| e.bytes).sum::<usize>());
    }

    #[test]
    fn a_text_over_the_limit_is_read_and_not_kept() {
        let reader = Reader::new(100);
        let text = format!("SELECT '{}'", "a".repeat(200));
        assert_eq!(reader.read(&text).unwrap().statements.len(), 1);
        assert_eq!(bytes(&reader), 0);
    }
}
