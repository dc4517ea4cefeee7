//! Changes a configuration that is written in TOML, and nothing else in it: comments, order, indentation and line ends
//! stay as they are.

use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike, Value};

use super::change::{
    At, Change, Changed, FURTHER_ARGUMENTS, Fault, Made, REACHED_BY, is_anothers, is_ours, is_written, reached_by,
    starts_another,
};
use super::difference::common;
use super::entry::Entry;

/// What an entry of ours holds.
const FIELDS: [&str; 3] = ["command", "args", "env"];

/// Changes a configuration.
///
/// # Errors
/// Fails, and says where, if the text is no TOML or the change has no place in it.
pub(super) fn change(text: &str, at: At<'_>, change: Change<'_>) -> Result<Changed, Fault> {
    let parsed = text.parse::<DocumentMut>();
    let mut document = parsed.map_err(|error| {
        let what = error.message().lines().collect::<Vec<_>>().join("; ");
        Fault::new(text, error.span().map_or(0, |span| span.start), what)
    })?;
    check(text, document.as_table(), at, matches!(change, Change::Put(_)))?;
    let mut changed = match change {
        Change::Put(entry) => put(&mut document, at, entry),
        Change::Remove(made) => remove(&mut document, at, made)?,
    };
    let removes = matches!(change, Change::Remove(_));
    changed.text =
        changed.text.map(|new| if removes { with_comments_of(text, &new) } else { with_line_ends_of(text, &new) });
    Ok(changed)
}

/// Finds fault with the document where the change would go.
fn check(text: &str, root: &dyn TableLike, at: At<'_>, puts: bool) -> Result<(), Fault> {
    let fault = |item: &Item, what: String| match item.span() {
        Some(span) => Fault::new(text, span.start, what),
        None => Fault { at: None, what },
    };
    let Some(servers) = root.get(at.servers) else { return Ok(()) };
    let Some(servers) = servers.as_table_like() else {
        return Err(fault(servers, format!("`{}` is no table", at.servers)));
    };
    let Some(entry) = servers.get(at.name) else { return Ok(()) };
    let Some(entry) = entry.as_table_like() else {
        return Err(fault(entry, format!("the entry `{}` is no table", at.name)));
    };
    if let Some((field, item)) = REACHED_BY.iter().find_map(|field| Some((field, entry.get(field)?))) {
        return Err(fault(item, reached_by(at.name, field)));
    }
    if let Some(command) = entry.get("command").filter(|command| puts && !command.as_str().is_some_and(is_ours)) {
        return Err(fault(command, is_anothers(at.name)));
    }
    match entry.get("env") {
        Some(env) if env.as_table_like().is_none() => Err(fault(env, "`env` is no table".to_owned())),
        Some(_) | None => Ok(()),
    }
}

fn put(document: &mut DocumentMut, at: At<'_>, entry: &Entry) -> Changed {
    let made = match document.get(at.servers) {
        None if document.to_string().trim().is_empty() => Made::File,
        None => Made::Servers,
        Some(_) => Made::Entry,
    };
    let root = document.as_table_mut();
    let servers = root.entry(at.servers).or_insert_with(|| {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    });
    let inline = servers.is_inline_table();
    let mut others = Vec::new();
    let mut was_there = false;
    // It is a table: whatever else it was is refused before.
    if let Some(servers) = servers.as_table_like_mut() {
        was_there = servers.contains_key(at.name);
        if !was_there {
            let new =
                if inline { Item::Value(Value::InlineTable(InlineTable::new())) } else { Item::Table(Table::new()) };
            servers.insert(at.name, new);
        }
        if let Some(there) = servers.get_mut(at.name).and_then(Item::as_table_like_mut) {
            others = others_of(there, |name| entry.env.iter().any(|(ours, _)| ours == name));
            fill(there, entry);
        }
    }
    Changed { text: Some(document.to_string()), made, was_there, others }
}

fn fill(there: &mut dyn TableLike, entry: &Entry) {
    set(there, "command", Value::from(entry.command.as_str()));
    let first = there.get("args").and_then(Item::as_array).and_then(|args| args.get(0)).and_then(Value::as_str);
    // Whoever added arguments to ours keeps them.
    if first.is_none() || first != entry.args.first().map(String::as_str) {
        set(there, "args", Value::Array(entry.args.iter().map(String::as_str).collect::<Array>()));
    }
    if entry.env.is_empty() {
        return;
    }
    if !there.contains_key("env") {
        there.insert("env", Item::Value(Value::InlineTable(InlineTable::new())));
    }
    let Some(env) = there.get_mut("env").and_then(Item::as_table_like_mut) else { return };
    entry.env.iter().for_each(|(name, value)| set(env, name, Value::from(value.as_str())));
}

/// Sets a value as it is wanted, with what stands around it; one that is so is not touched.
fn set(of: &mut dyn TableLike, key: &str, mut wanted: Value) {
    match of.get_mut(key) {
        Some(Item::Value(there)) => {
            if plain(there) != plain(&wanted) {
                *wanted.decor_mut() = there.decor().clone();
                *there = wanted;
            }
        }
        Some(other) => *other = Item::Value(wanted),
        None => drop(of.insert(key, Item::Value(wanted))),
    }
}

/// Returns the texts of a text or a list; of anything else none, as entries are made of nothing else.
fn plain(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(text) => Some(vec![text.value()]),
        Value::Array(items) => items.iter().map(Value::as_str).collect(),
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) | Value::InlineTable(_) => None,
    }
}

/// Returns what an entry has that is not of our making; `ours` tells which variables are.
fn others_of(entry: &dyn TableLike, ours: impl Fn(&str) -> bool) -> Vec<String> {
    let names = |of: &dyn TableLike| of.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
    let mut others: Vec<String> = names(entry).into_iter().filter(|name| !FIELDS.contains(&name.as_str())).collect();
    let env = entry.get("env").and_then(Item::as_table_like).map(names).unwrap_or_default();
    others.extend(env.into_iter().filter(|name| !ours(name)).map(|name| format!("env.{name}")));
    others
}

fn remove(document: &mut DocumentMut, at: At<'_>, made: Made) -> Result<Changed, Fault> {
    let mut others = Vec::new();
    let mut was_there = false;
    let mut had_comment = false;
    if let Some(servers) = document.get_mut(at.servers).and_then(Item::as_table_like_mut)
        && let Some(entry) = servers.get(at.name).and_then(Item::as_table_like)
    {
        if !entry.get("command").and_then(Item::as_str).is_some_and(is_ours) {
            return Err(Fault { at: None, what: starts_another(at.name) });
        }
        others = others_of(entry, is_written);
        let args = entry.get("args").and_then(Item::as_array).map(Array::len).unwrap_or_default();
        others.extend((args > 1).then(|| FURTHER_ARGUMENTS.to_owned()));
        was_there = true;
        let above = servers.get(at.name).and_then(Item::as_table).and_then(|table| table.decor().prefix()?.as_str());
        had_comment = above.is_some_and(|above| above.contains('#'));
        servers.remove(at.name);
        let empty = servers.is_empty();
        let implicit = document.get(at.servers).and_then(Item::as_table).is_some_and(Table::is_implicit);
        if empty && (made >= Made::Servers || implicit) {
            document.remove(at.servers);
        }
    }
    let text = document.to_string();
    let is_bare = text.trim().is_empty() && !had_comment;
    let text = (made != Made::File || !was_there || !is_bare).then_some(text);
    Ok(Changed { text, made, was_there, others })
}

/// Leaves what somebody wrote above a table that goes: the document takes it away with the table.
fn with_comments_of(old: &str, new: &str) -> String {
    let new = with_line_ends_of(old, new);
    let olds: Vec<&str> = old.split_inclusive('\n').collect();
    let news: Vec<&str> = new.split_inclusive('\n').collect();
    let (head, tail) = common(&olds, &news);
    let gone = olds.get(head..olds.len() - tail).unwrap_or_default();
    let above = gone.iter().take_while(|line| !line.trim_start().starts_with('['));
    let above: Vec<&str> = above.copied().filter(|line| line.trim_start().starts_with('#')).collect();
    let part = |from: usize, to: usize| news.get(from..to).unwrap_or_default().iter().copied();
    part(0, head).chain(above).chain(part(head, news.len())).collect()
}

/// Gives every line that was there its own end again, and new ones the end that most have: the document writes one kind.
fn with_line_ends_of(old: &str, new: &str) -> String {
    if !old.contains('\r') {
        return new.to_owned();
    }
    let bare = |line: &'_ str| line.trim_end_matches(['\r', '\n']).to_owned();
    let olds: Vec<&str> = old.split_inclusive('\n').collect();
    let news: Vec<&str> = new.split_inclusive('\n').collect();
    let olds_bare: Vec<String> = olds.iter().map(|line| bare(line)).collect();
    let news_bare: Vec<String> = news.iter().map(|line| bare(line)).collect();
    let (head, tail) = common(&olds_bare, &news_bare);
    let crlf = olds.iter().filter(|line| line.ends_with("\r\n")).count() * 2 >= olds.len();
    let middle = news.iter().skip(head).take(news.len() - head - tail);
    let middle = middle.map(|line| format!("{}{}", bare(line), if crlf { "\r\n" } else { "\n" }));
    let head_lines = olds.iter().take(head).map(|line| (*line).to_owned());
    let tail_lines = olds.iter().skip(olds.len() - tail).map(|line| (*line).to_owned());
    head_lines.chain(middle).chain(tail_lines).collect()
}
