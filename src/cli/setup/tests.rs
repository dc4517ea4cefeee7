//! What is changed in a configuration, and what is not.

use super::change::{At, Change, Changed, Fault, Made};
use super::entry::Entry;
use super::{json, toml};

const AT: At<'_> = At { servers: "mcpServers", name: "pgsandbox", typed: false };
const IN_TOML: At<'_> = At { servers: "mcp_servers", name: "pgsandbox", typed: false };

fn entry() -> Entry {
    Entry {
        command: "/opt/pgsandbox".to_owned(),
        args: vec!["mcp".to_owned()],
        env: vec![("PGSANDBOX_HOME".to_owned(), "/a \"b\"\\c".to_owned())],
    }
}

fn in_json(text: &str, change: Change<'_>) -> Result<Changed, Fault> {
    json::change(text, true, AT, change)
}

fn in_toml(text: &str, change: Change<'_>) -> Result<Changed, Fault> {
    toml::change(text, IN_TOML, change)
}

type Changer = fn(&str, Change<'_>) -> Result<Changed, Fault>;

/// Puts the entry into `text`, where it must stand as `expected`; putting it again changes nothing, and taking it back
/// leaves the text as it was.
fn check(changer: Changer, text: &str, expected: &str) {
    let put = changer(text, Change::Put(&entry())).unwrap();
    let new = put.text.unwrap();
    assert_eq!(new, expected, "from {text:?}");
    let again = changer(&new, Change::Put(&entry())).unwrap();
    assert_eq!((again.text.as_deref(), again.was_there), (Some(new.as_str()), true));
    if !put.was_there {
        let back = changer(&new, Change::Remove(put.made)).unwrap();
        assert_eq!(back.text.unwrap_or_default(), text, "taken back from {new:?}");
    }
}

const ENTRY: &str = r#""pgsandbox": {
      "command": "/opt/pgsandbox",
      "args": ["mcp"],
      "env": {
        "PGSANDBOX_HOME": "/a \"b\"\\c"
      }
    }"#;

#[test]
fn json_is_changed_where_it_must_be_and_nowhere_else() {
    check(in_json, "", &format!("{{\n  \"mcpServers\": {{\n    {ENTRY}\n  }}\n}}\n"));
    check(in_json, "{\n  \"a\": 1\n}\n", &format!("{{\n  \"a\": 1,\n  \"mcpServers\": {{\n    {ENTRY}\n  }}\n}}\n"));
    check(
        in_json,
        "// mine\n{\n  /* b */ \"mcpServers\": {\n    // c\n    \"x\": {\"url\": \"u\"} // d\n    // e\n  },\n  \"z\": [ 1,2 ]\n}",
        &format!(
            "// mine\n{{\n  /* b */ \"mcpServers\": {{\n    // c\n    \"x\": {{\"url\": \"u\"}}, // d\n    {ENTRY}\n    // e\n  }},\n  \"z\": [ 1,2 ]\n}}"
        ),
    );
    // Trailing commas, tabs and a mark of the byte order.
    let tabs = ENTRY.replace("  ", "\t").replace("\\c\"\n\t\t\t}\n", "\\c\",\n\t\t\t},\n");
    check(
        in_json,
        "\u{feff}{\n\t\"mcpServers\": {\n\t\t\"x\": {},\n\t},\n}\n",
        &format!("\u{feff}{{\n\t\"mcpServers\": {{\n\t\t\"x\": {{}},\n\t\t{tabs},\n\t}},\n}}\n"),
    );
    let crlf = |text: &str| text.replace('\n', "\r\n");
    check(
        in_json,
        &crlf("{\n  \"mcpServers\": {\n    \"x\": {}\n  }\n}\n"),
        &crlf(&format!("{{\n  \"mcpServers\": {{\n    \"x\": {{}},\n    {ENTRY}\n  }}\n}}\n")),
    );
}

#[test]
fn toml_is_changed_where_it_must_be_and_nowhere_else() {
    let ours = "[mcp_servers.pgsandbox]\ncommand = \"/opt/pgsandbox\"\nargs = [\"mcp\"]\nenv = { PGSANDBOX_HOME = '/a \"b\"\\c' }\n";
    check(in_toml, "", ours);
    check(in_toml, "# mine\nmodel   =  'o'  # as it is\n", &format!("# mine\nmodel   =  'o'  # as it is\n\n{ours}"));
    check(
        in_toml,
        "[mcp_servers.x]\ncommand = \"y\" # z\n\n[tui]\na = 1\n",
        &format!("[mcp_servers.x]\ncommand = \"y\" # z\n\n{ours}\n[tui]\na = 1\n"),
    );
    check(
        in_toml,
        "mcp_servers = { x = { command = \"y\" } }\r\na = \"\"\"\r\nb\nc\"\"\"\r\n",
        "mcp_servers = { x = { command = \"y\" } , pgsandbox = { command = \"/opt/pgsandbox\", args = [\"mcp\"], env = { PGSANDBOX_HOME = '/a \"b\"\\c' } } }\r\na = \"\"\"\r\nb\nc\"\"\"\r\n",
    );
}

#[test]
fn what_somebody_added_to_the_entry_is_kept() {
    let text = r#"{"mcpServers": {"pgsandbox": {"disabled": true, "command": "/old/pgsandbox", "args": ["mcp", "--toolsets", "all"], "env": {"X": "1"}}}}"#;
    let changed = in_json(text, Change::Put(&entry())).unwrap();
    let seen: serde_json::Value = serde_json::from_str(changed.text.as_deref().unwrap()).unwrap();
    assert_eq!(
        seen["mcpServers"]["pgsandbox"],
        serde_json::json!({"disabled": true, "command": "/opt/pgsandbox", "args": ["mcp", "--toolsets", "all"],
            "env": {"X": "1", "PGSANDBOX_HOME": "/a \"b\"\\c"}})
    );
    assert_eq!(changed.others, ["disabled", "env.X"]);
    let text = "[mcp_servers.pgsandbox]\ncommand = '/old/pgsandbox' # why\nargs = ['mcp', '-x']\ntool_timeout_sec = 9\n\n[mcp_servers.pgsandbox.env]\nX = '1'\n";
    let changed = in_toml(text, Change::Put(&entry())).unwrap();
    assert_eq!(
        changed.text.as_deref().unwrap(),
        "[mcp_servers.pgsandbox]\ncommand = \"/opt/pgsandbox\" # why\nargs = ['mcp', '-x']\ntool_timeout_sec = 9\n\n[mcp_servers.pgsandbox.env]\nX = '1'\nPGSANDBOX_HOME = '/a \"b\"\\c'\n"
    );
    assert_eq!(changed.others, ["tool_timeout_sec", "env.X"]);
}

#[test]
fn what_has_no_place_for_a_server_is_left_alone_and_the_place_is_told() {
    let refused = |changer: Changer, text: &str, at: (usize, usize), what: &str| {
        let fault = changer(text, Change::Put(&entry())).unwrap_err();
        assert_eq!(fault.at, Some(at), "{text}: {fault:?}");
        assert!(fault.what.contains(what), "{text}: {fault:?}");
    };
    refused(in_json, "{\n  \"a\": nope\n}", (2, 8), "");
    refused(in_json, "{\"a\": 1", (1, 1), "");
    refused(in_json, "[]", (1, 1), "no object");
    refused(in_json, "{\n\"mcpServers\": []}", (2, 15), "no object");
    refused(in_json, "{\"mcpServers\": {},\n \"mcpServers\": {}}", (2, 2), "twice");
    refused(in_json, "{\"mcpServers\": {\"pgsandbox\": {\"url\": \"http://x\"}}}", (1, 38), "`url`");
    refused(in_json, "{\"mcpServers\": {\"pgsandbox\": {\"env\": 1}}}", (1, 38), "`env`");
    refused(in_json, "{\"mcpServers\": {\"pgsandbox\": null}}", (1, 30), "no object");
    refused(in_json, &"[".repeat(100_000), (1, 513), "");
    refused(in_toml, "a = 1\na = 2\n", (2, 1), "duplicate key");
    refused(in_toml, "a = \n", (1, 5), "");
    let strict = json::change("{} // c", false, AT, Change::Put(&entry())).unwrap_err();
    assert_eq!(strict.at, Some((1, 4)), "{strict:?}");
}

#[test]
fn another_program_is_not_replaced() {
    for (changer, text, at) in [
        (in_json as Changer, r#"{"mcpServers": {"pgsandbox": {"command": "npx"}}}"#, Some((1, 42))),
        (in_json as Changer, r#"{"mcpServers": {"pgsandbox": {"command": 1}}}"#, Some((1, 42))),
        (in_toml as Changer, "[mcp_servers.pgsandbox]\ncommand = 'npx'\n", None),
    ] {
        let fault = changer(text, Change::Put(&entry())).unwrap_err();
        assert_eq!(fault.at, at, "{fault:?}");
        assert!(fault.what.contains("another program") && fault.what.contains("--name"), "{fault:?}");
    }
}

#[test]
fn another_program_is_not_taken_away() {
    for (changer, text) in [
        (in_json as Changer, r#"{"mcpServers": {"pgsandbox": {"command": "npx"}}}"#),
        (in_toml as Changer, "[mcp_servers.pgsandbox]\ncommand = 'npx'\n"),
    ] {
        let fault = changer(text, Change::Remove(Made::Entry)).unwrap_err();
        assert!(fault.what.contains("another program"), "{fault:?}");
    }
}

#[test]
fn what_somebody_wrote_into_what_was_made_stays() {
    let text = "{\"mcpServers\": {\n  // a thought\n  \"pgsandbox\": {\"command\": \"pgsandbox\"}}}";
    let changed = in_json(text, Change::Remove(Made::File)).unwrap();
    assert!(changed.text.unwrap().contains("// a thought"));
    let text = "# a thought\n[mcp_servers.pgsandbox]\ncommand = 'pgsandbox'\n[mcp_servers.x]\ncommand = 'y'\n";
    let changed = in_toml(text, Change::Remove(Made::File)).unwrap();
    assert_eq!(changed.text.unwrap(), "# a thought\n[mcp_servers.x]\ncommand = 'y'\n");
}

#[test]
fn what_setting_up_writes_is_not_somebody_elses_and_what_it_never_writes_is() {
    let written = ["PGSANDBOX_HOME", "PGSANDBOX_CONFIG", "PGSANDBOX_POSTGRES_15_BIN_DIR", "PGSANDBOX_DATABASE_PREFIX"];
    assert!(written.iter().all(|name| super::change::is_written(name)));
    assert!(!super::change::is_written("PGSANDBOX_ADMIN_DATABASE_URL") && !super::change::is_written("X"));
}
