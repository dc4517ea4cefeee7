//! Changes a configuration that is written in JSON, and nothing else in it: comments, order, indentation and line ends
//! stay as they are.

use jsonc_parser::ast::{Object, ObjectPropName, Value as Ast};
use jsonc_parser::common::Ranged;
use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};
use serde_json::{Value, json};

use super::change::{
    At, Change, Changed, FURTHER_ARGUMENTS, Fault, Made, REACHED_BY, is_anothers, is_ours, is_written, reached_by,
    starts_another,
};
use super::entry::Entry;

/// What some editors write before their text.
const BYTE_ORDER_MARK: char = '\u{feff}';
/// What an entry of ours holds.
const FIELDS: [&str; 4] = ["type", "command", "args", "env"];

/// Changes a configuration.
///
/// # Errors
/// Fails, and says where, if the text is not what the client reads or the change has no place in it.
pub(super) fn change(text: &str, with_comments: bool, at: At<'_>, change: Change<'_>) -> Result<Changed, Fault> {
    let (mark, body) = match text.strip_prefix(BYTE_ORDER_MARK) {
        Some(body) => ("\u{feff}", body),
        None => ("", text),
    };
    let options = options(with_comments);
    check(body, &options, at, matches!(change, Change::Put(_)))?;
    let parsed = CstRootNode::parse(body, &options);
    let root = parsed.map_err(|error| Fault::new(body, error.range().start, error.kind().to_string()))?;
    if root.to_string() != body {
        return Err(Fault { at: None, what: "cannot be written back as it is".to_owned() });
    }
    let mut changed = match change {
        Change::Put(entry) => put(&root, at, entry),
        Change::Remove(made) => remove(&root, at, made)?,
    };
    if let Some(text) = &mut changed.text {
        text.insert_str(0, mark);
    }
    Ok(changed)
}

fn options(with_comments: bool) -> ParseOptions {
    ParseOptions {
        allow_comments: with_comments,
        allow_trailing_commas: with_comments,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    }
}

/// Finds fault with the text where the change would go.
fn check(text: &str, options: &ParseOptions, at: At<'_>, puts: bool) -> Result<(), Fault> {
    let parsed = parse_to_ast(text, &CollectOptions::default(), options);
    let parsed = parsed.map_err(|error| Fault::new(text, error.range().start, error.kind().to_string()))?;
    let Some(root) = &parsed.value else { return Ok(()) };
    let object = |value: &'_ Ast<'_>, what: &str| {
        let is_object = matches!(value, Ast::Object(_));
        if is_object { Ok(()) } else { Err(Fault::new(text, value.range().start, format!("{what} is no object"))) }
    };
    object(root, "the configuration")?;
    let Some(servers) = member(text, root, at.servers)? else { return Ok(()) };
    object(servers, &format!("`{}`", at.servers))?;
    let Some(entry) = member(text, servers, at.name)? else { return Ok(()) };
    object(entry, &format!("the entry `{}`", at.name))?;
    for field in FIELDS.into_iter().chain(REACHED_BY) {
        let Some(value) = member(text, entry, field)? else { continue };
        if REACHED_BY.contains(&field) {
            return Err(Fault::new(text, value.range().start, reached_by(at.name, field)));
        }
        let starts = if let Ast::StringLit(command) = value { Some(&*command.value) } else { None };
        if field == "command" && puts && !starts.is_some_and(is_ours) {
            return Err(Fault::new(text, value.range().start, is_anothers(at.name)));
        }
        if field == "env" {
            object(value, "`env`")?;
        }
    }
    Ok(())
}

/// Returns the value of a key that must not be there twice: readers differ in which of them counts.
fn member<'a, 'b>(text: &str, of: &'b Ast<'a>, key: &str) -> Result<Option<&'b Ast<'a>>, Fault> {
    let Ast::Object(Object { properties, .. }) = of else { return Ok(None) };
    let named = |name: &ObjectPropName<'_>| name.as_str() == key;
    let mut found = properties.iter().filter(|property| named(&property.name));
    let first = found.next();
    match found.next() {
        Some(again) => Err(Fault::new(text, again.range.start, format!("`{key}` is there twice"))),
        None => Ok(first.map(|property| &property.value)),
    }
}

fn put(root: &CstRootNode, at: At<'_>, entry: &Entry) -> Changed {
    let made_file = root.value().is_none();
    let object = root.object_value_or_set();
    let made = match (made_file, object.get(at.servers)) {
        (true, _) => Made::File,
        (false, None) => Made::Servers,
        (false, Some(_)) => Made::Entry,
    };
    let servers = object.object_value_or_set(at.servers);
    let wanted = fields(at, entry);
    let was_there = servers.get(at.name).is_some();
    let mut others = Vec::new();
    if let Some(there) = servers.object_value(at.name) {
        others = others_of(&there, |name| entry.env.iter().any(|(ours, _)| ours == name));
        let args = there.array_value("args").and_then(|args| args.elements().first()?.to_serde_value());
        // Whoever added arguments to ours keeps them.
        let keeps_args = args.is_some_and(|first| entry.args.first().is_some_and(|ours| first == json!(ours)));
        let wanted = wanted.into_iter().filter(|(key, _)| key != "args" || !keeps_args);
        wanted.for_each(|(key, value)| set(&there, &key, value));
    } else {
        servers.append(at.name, CstInputValue::Object(wanted));
    }
    let mut text = root.to_string();
    if made == Made::File && !text.ends_with('\n') {
        text.push('\n');
    }
    Changed { text: Some(text), made, was_there, others }
}

/// Sets a member as it is wanted. One that is so is not touched, and of an object only what is wanted is.
fn set(of: &CstObject, key: &str, wanted: CstInputValue) {
    let Some(there) = of.get(key) else { return drop(of.append(key, wanted)) };
    match (there.object_value(), wanted) {
        (Some(object), CstInputValue::Object(members)) => {
            members.into_iter().for_each(|(key, value)| set(&object, &key, value));
        }
        (_, wanted) => {
            if there.value().and_then(|value| value.to_serde_value()) != Some(plain(&wanted)) {
                there.set_value(wanted);
            }
        }
    }
}

fn plain(value: &CstInputValue) -> Value {
    match value {
        CstInputValue::String(text) => json!(text),
        CstInputValue::Array(items) => items.iter().map(plain).collect(),
        // What entries are made of holds nothing else.
        CstInputValue::Null | CstInputValue::Bool(_) | CstInputValue::Number(_) | CstInputValue::Object(_) => {
            Value::Null
        }
    }
}

fn fields(at: At<'_>, entry: &Entry) -> Vec<(String, CstInputValue)> {
    let text = |text: &str| CstInputValue::String(text.to_owned());
    let mut fields = Vec::new();
    if at.typed {
        fields.push(("type".to_owned(), text("stdio")));
    }
    fields.push(("command".to_owned(), text(&entry.command)));
    fields.push(("args".to_owned(), CstInputValue::Array(entry.args.iter().map(|arg| text(arg)).collect())));
    if !entry.env.is_empty() {
        let env = entry.env.iter().map(|(name, value)| (name.clone(), text(value))).collect();
        fields.push(("env".to_owned(), CstInputValue::Object(env)));
    }
    fields
}

/// Returns what an entry has that is not of our making; `ours` tells which variables are.
fn others_of(entry: &CstObject, ours: impl Fn(&str) -> bool) -> Vec<String> {
    let names = |of: &CstObject| of.properties().into_iter().filter_map(|p| p.decoded_name()).collect::<Vec<_>>();
    let mut others: Vec<String> = names(entry).into_iter().filter(|name| !FIELDS.contains(&name.as_str())).collect();
    let env = entry.object_value("env").map(|env| names(&env)).unwrap_or_default();
    others.extend(env.into_iter().filter(|name| !ours(name)).map(|name| format!("env.{name}")));
    others
}

fn remove(root: &CstRootNode, at: At<'_>, made: Made) -> Result<Changed, Fault> {
    let unchanged = Changed { text: Some(root.to_string()), made, was_there: false, others: Vec::new() };
    let Some(object) = root.object_value() else { return Ok(unchanged) };
    let Some(servers) = object.object_value(at.servers) else { return Ok(unchanged) };
    let Some(entry) = servers.object_value(at.name) else { return Ok(unchanged) };
    let command = entry.get("command").and_then(|command| command.value()?.as_string_lit()?.decoded_value().ok());
    if !command.is_some_and(|command| is_ours(&command)) {
        return Err(Fault { at: None, what: starts_another(at.name) });
    }
    let mut others = others_of(&entry, is_written);
    let args = entry.array_value("args").map(|args| args.elements().len()).unwrap_or_default();
    others.extend((args > 1).then(|| FURTHER_ARGUMENTS.to_owned()));
    drop(entry);
    servers.get(at.name).into_iter().for_each(|property| property.remove());
    // What is left of an object that was made for the server goes too, unless somebody has written into it.
    let is_bare = |object: &CstObject| object.to_string().chars().all(|c| c.is_whitespace() || "{}".contains(c));
    let servers_go = made >= Made::Servers && is_bare(&servers);
    drop(servers);
    if servers_go {
        object.get(at.servers).into_iter().for_each(|property| property.remove());
    }
    let file_goes = made == Made::File && root.to_string().chars().all(|c| c.is_whitespace() || "{}".contains(c));
    let text = (!file_goes).then(|| root.to_string());
    Ok(Changed { text, made, was_there: true, others })
}
