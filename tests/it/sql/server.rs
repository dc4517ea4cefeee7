//! Agreement with a real server: where tokens and statements end, what writes, and what a query names.

use std::collections::{BTreeSet, HashSet};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pgsandbox::model::{StatementClass as Class, Traits};
use pgsandbox::sql::read;
use pgsandbox::sql::scanner::{TokenKind, tokens};
use tokio_postgres::{Client, NoTls};

use super::FRAGMENTS;

/// A server of its own in a temporary directory, reached by its socket, gone at the end.
struct Server {
    directory: tempfile::TempDir,
    process: Child,
}

impl Server {
    fn start() -> Self {
        let directory = tempfile::Builder::new().prefix("pgs").tempdir_in("/tmp").unwrap();
        let user = unprivileged();
        if let Some((uid, gid)) = user {
            chown(directory.path(), Some(uid), Some(gid)).unwrap();
        }
        let program = |name: &str| {
            let mut command = Command::new(binaries().join(name));
            command.current_dir(directory.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            if let Some((uid, gid)) = user {
                command.uid(uid).gid(gid);
            }
            command
        };
        let data = directory.path().join("data");
        let made = program("initdb")
            .args(["-U", "tester", "-A", "trust", "-N", "-E", "UTF8", "--locale=C", "-D"])
            .arg(&data)
            .status();
        assert!(made.unwrap().success(), "initdb");
        let process = program("postgres")
            .args(["-F", "-c", "listen_addresses=", "-k"])
            .arg(directory.path())
            .arg("-D")
            .arg(&data)
            .spawn()
            .unwrap();
        Self { directory, process }
    }

    /// Connects as soon as the server answers.
    async fn client(&self) -> Client {
        let mut config = tokio_postgres::Config::new();
        config.host_path(self.directory.path()).user("tester").dbname("postgres");
        let answers = async {
            loop {
                if let Ok((client, connection)) = config.connect(NoTls).await {
                    tokio::spawn(connection);
                    return client;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), answers).await.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Returns the newest installed server's binaries.
fn binaries() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").unwrap_or_else(|e| panic!("no Postgres is installed: {e}"));
    let version = |path: &Path| path.file_name().and_then(|n| n.to_str()).and_then(|n| n.parse::<u32>().ok());
    let newest = versions.map(|entry| entry.unwrap().path()).max_by_key(|path| version(path)).unwrap();
    newest.join("bin")
}

/// Returns whom to run as, for servers refuse to run as root.
fn unprivileged() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
    let line = passwd.lines().find(|line| line.starts_with("postgres:")).unwrap();
    let fields: Vec<_> = line.split(':').collect();
    Some((fields[2].parse().unwrap(), fields[3].parse().unwrap()))
}

/// Returns what the server makes of a text as one statement: the columns, or its complaint, which names tokens.
async fn parsed(client: &Client, sql: &str) -> String {
    match client.prepare(sql).await {
        Ok(statement) => format!("{:?}", statement.columns().iter().map(|c| (c.name(), c.type_())).collect::<Vec<_>>()),
        Err(error) => match error.as_db_error() {
            Some(error) => format!("{} {}", error.code().code(), error.message()),
            None => panic!("{sql:?}: {error}"),
        },
    }
}

/// Checks that what we take for one token is not two to the server: alone in its place, it is no syntax error.
async fn check_is_one_token(client: &Client, kind: TokenKind, token: &str) {
    // Underscores and other radixes came with Postgres 16.
    let old_number = token.bytes().all(|b| !b.is_ascii_alphabetic() && b != b'_');
    let sql = if matches!(kind, TokenKind::String | TokenKind::UnicodeString | TokenKind::DollarString)
        || (kind == TokenKind::Number && old_number)
    {
        format!("select {token}")
    } else if matches!(kind, TokenKind::Word | TokenKind::QuotedName) {
        format!("select 1 as {token}")
    } else if kind == TokenKind::Operator {
        format!("select 1 operator({token}) 1")
    } else {
        return;
    };
    let answer = parsed(client, &sql).await;
    let two = answer.contains("syntax error") || answer.contains("unterminated") || answer.contains("junk");
    assert!(!two, "{token:?} is not one {kind:?} to the server: {answer}");
}

const SEVERAL: &str = "cannot insert multiple commands into a prepared statement";

/// Numbers from a fixed seed, so that a failure comes again.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// An expression whose operands, operators and comments touch each other, with statements before and behind.
fn expression(numbers: &mut Numbers) -> String {
    const OPERANDS: &[&str] = &[
        "1",
        "2.",
        ".5",
        "1e1",
        "'a'",
        "'a''b'",
        "'\\'",
        "E'\\''",
        "E'a'\n'\\'b'",
        "'a' -- '\n 'b'",
        "'a'\r'b'",
        "$$a$$",
        "$é$'$é$",
        "$a$$b$$a$",
        "B'1'",
        "x'1f'",
        "N'n'",
        "U&'\\0061'",
        "null",
        "true",
        "(select 1)",
        "a.b",
        "\"a\"\"b\"",
        "\"$$\"",
        "a$$",
        "é",
        "array[1,2]",
        "cast('1' as int)",
        "@1",
        "-1",
        "'1'::int",
        "_1",
        "pi()",
    ];
    const OPERATORS: &[&str] = &[
        "+", "-", "*", "/", "<", ">", "=", "<=", ">=", "<>", "!=", "||", "@", "~", "#", "&", "|", "^", "%", "@-", "*-",
        "<-", ">-", "=-", "+-", "-+", "~-", "|/", "->>", "?-", "<<", "=>", "::", ":=", ",", " as ", " and ", " is ",
        ";select ", "..",
    ];
    const GLUE: &[&str] =
        &["", "", "", " ", "/* ' */", "/*/**/\"*/", "-- '\n", "--\"\r", "\n", "\t", "\u{c}", "--$$\n", "/*;*/"];
    let mut text = "select ".to_owned();
    for index in 0..numbers.pick(&[1, 2, 2, 3, 4]) {
        if index > 0 {
            text += numbers.pick(GLUE);
            text += numbers.pick(OPERATORS);
        }
        text += numbers.pick(GLUE);
        text += numbers.pick(OPERANDS);
    }
    text + numbers.pick(GLUE)
}

fn random_soup(numbers: &mut Numbers) -> String {
    let length = numbers.pick(&[2, 4, 6, 8, 10]);
    let parts: Vec<_> = (0..length).map(|_| numbers.pick(FRAGMENTS)).collect();
    format!("select {}", parts.concat())
}

#[tokio::test]
async fn tokens_and_statements_end_where_the_server_ends_them() {
    let server = Server::start();
    let client = server.client().await;
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let (mut compared, mut accepted) = (0, 0);
    let mut alone = HashSet::new();
    for round in 0..6_000 {
        let text = if round % 3 == 0 { random_soup(&mut numbers) } else { expression(&mut numbers) };
        // What we refuse never reaches a server; COPY data and psql's lines are not for it either.
        let Ok(all) = tokens(&text) else { continue };
        let Ok(script) = read(&text) else { continue };
        if text.contains("COPY") || text.contains('\\') && all.iter().any(|t| t.kind == TokenKind::Backslash) {
            continue;
        }
        let apart: Vec<_> = all
            .iter()
            .filter(|t| !matches!(t.kind, TokenKind::Space | TokenKind::Comment))
            .map(|t| &text[t.range()])
            .collect();
        let as_written = parsed(&client, &text).await;
        let with_spaces = parsed(&client, &apart.join(" ")).await;
        assert_eq!(as_written, with_spaces, "{text:?} is cut differently: {apart:?}");
        if as_written.contains(SEVERAL) {
            assert!(script.statements.len() > 1, "{text:?} is several statements to the server");
        }
        if as_written.starts_with('[') {
            assert_eq!(script.statements.len(), 1, "{text:?} is one statement to the server");
            accepted += 1;
        }
        for token in &all {
            let token_text = &text[token.range()];
            if alone.insert(token_text.to_owned()) {
                check_is_one_token(&client, token.kind, token_text).await;
            }
        }
        compared += 1;
    }
    assert!(compared > 3_000 && accepted > 300, "{compared} texts compared, {accepted} accepted");
    assert!(alone.len() > 300, "{} tokens", alone.len());
}

/// Statements whose words are mixed: reads, and writes that look like reads.
const BASES: &[&str] = &[
    "select a , update , delete , insert from t where a = 1 order by key",
    "select t . update , t . into from t as t",
    "select 1 as into , 2 as for , 3 as as from t",
    "select a end into x from t",
    "select a and into x from t",
    "select 1 as as into x",
    "select * into temp x from t group by by",
    "select a from t for update",
    "select a from t for no key update of t nowait",
    "select a from ( select a from t for share ) q limit 1 for key share",
    "with d as ( delete from t returning a ) select a from d",
    "with d as materialized ( update t set a = 1 returning a ) select a from d",
    "with d ( a ) as ( insert into t ( a ) values ( 1 ) returning a ) table d",
    "with recursive r ( a ) as ( select 1 union all select a from r where false ) search depth first by a set key select a from r",
    "with recursive r ( a ) as ( select 1 union all select a from r where false ) search depth first by a set by delete from t",
    "with recursive r ( a ) as ( select 1 union all select a from r where false ) cycle a set update using key update t set a = 1",
    "with e as ( select 1 ) merge into t using e on true when matched then delete",
    "with w as ( with d as ( delete from t returning a ) select a from d ) select a from w",
    "with a as ( select 1 as update ) select update from a",
    "with a as ( select 1 as delete ) select delete from a",
    "with a as ( select 1 ) , b as ( table a ) values ( 1 ) union select * from b",
    "insert into t ( a ) select a from t on conflict do nothing",
    "explain ( analyze off , costs ) delete from t",
    "explain ( costs , analyze ) insert into t ( a ) values ( 1 )",
    "explain analyze verbose select a into x from t",
    "explain analyze create table x as select 1",
    "explain ( verbose ) with d as ( delete from t returning a ) select a from d",
    "values ( 1 ) , ( ( select a from t limit 1 ) )",
    "table t for update",
    "( select a from t ) union ( select key from t ) order by 1",
    "select case when a = 1 then update else delete end from t",
    "select substring ( 'a' from 1 for key ) from t",
    "prepare p as delete from t",
    "declare c cursor for select a from t for update",
    "show all",
];

/// Puts pieces of other bases into one of them: none in the first round over all, more in later ones.
fn mixed(bases: &[Vec<&str>], round: usize, numbers: &mut Numbers) -> String {
    let mut words = bases[round % bases.len()].clone();
    for _ in 0..round / bases.len() % 4 {
        let other = &bases[numbers.below(bases.len())];
        let from = numbers.below(other.len());
        let length = numbers.pick(&[0, 1, 1, 1, 2, 3, 5]).min(other.len() - from);
        let at = numbers.below(words.len() + 1);
        let removed = numbers.pick(&[0, 0, 1, 1, 2]).min(words.len() - at);
        words.splice(at..at + removed, other[from..from + length].iter().copied());
    }
    words.join(" ")
}

#[tokio::test]
async fn nothing_that_the_server_calls_a_write_is_called_a_read() {
    let server = Server::start();
    let client = server.client().await;
    let table = "create table t (a int, update int, delete int, insert int, key int, by int, share int, \"into\" int)";
    client.batch_execute(table).await.unwrap();
    let bases: Vec<Vec<&str>> = BASES.iter().map(|base| base.split(' ').collect()).collect();
    let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
    let (mut reads, mut writes, mut stricter) = (0, 0, 0);
    for round in 0..3_000 {
        let sql = mixed(&bases, round, &mut numbers);
        let Ok(script) = read(&sql) else { continue };
        let [statement] = script.statements.as_slice() else { continue };
        let class = statement.facts.class;
        let looks_like_a_read = matches!(class, Class::Read | Class::Show | Class::Explain | Class::CopyOut);
        client.batch_execute("begin read only").await.unwrap();
        let outcome = match client.prepare(&sql).await {
            Ok(prepared) => client.execute(&prepared, &[]).await,
            Err(error) => Err(error),
        };
        client.batch_execute("rollback").await.unwrap();
        match outcome.map_err(|e| e.code().map_or(String::new(), |c| c.code().to_owned())) {
            Err(code) if code == "25006" => {
                assert!(!looks_like_a_read && !statement.facts.read_only_safe, "{sql:?} is {} to us", class.as_str());
                writes += 1;
            }
            // The server prepares writes, and explains CREATE TABLE AS by doing it, in a read-only transaction too.
            Ok(_) if sql.starts_with("prepare") || sql.starts_with("explain") => {}
            Ok(_) if looks_like_a_read => reads += 1,
            Ok(_) if matches!(class, Class::Write | Class::Ddl | Class::ReadLock) => stricter += 1,
            Ok(_) | Err(_) => {}
        }
    }
    assert!(reads > 100 && writes > 100, "{reads} reads, {writes} writes");
    assert!(stricter * 20 < reads, "{stricter} of {reads} reads are called writes");
}

/// Queries that name relations and functions in every place where a query can.
const NAMING: &[&str] = &[
    "select * from t , only u",
    "select a from t natural left join u",
    "select a from ( t cross join u ) join s . v using ( a )",
    "with t as ( select * from u ) select * from t",
    "with t as ( select * from t ) select * from t , u",
    "with recursive t as ( select 1 as a union all select a from t where false ) select * from t , u",
    "with x as ( with u as ( select 1 as a ) select * from u ) select * from x , u",
    "with t as materialized ( select f ( 1 ) as a ) , u as ( select * from t ) select * from u",
    "select ( select a from u limit 1 ) from t where exists ( table s . v )",
    "select f ( a ) , g ( ) from t",
    "select * from f ( 1 ) x , lateral g ( ) y",
    "select * from rows from ( f ( 1 ) , g ( ) ) z",
    "select * from f ( g ( ) ) with ordinality as z ( a , b )",
    "select a from t union select a from u except table t",
    "values ( ( select a from t limit 1 ) , f ( 2 ) )",
    "select t from t",
    "select u . a from t u join u t on t . a = u . a",
    "select * from t u ( a )",
    "select sum ( f ( a ) ) filter ( where g ( ) > 0 ) from t",
    "select sum ( a ) over ( partition by f ( 3 ) order by g ( ) ) from t",
    "select sum ( a ) over w from t window w as ( order by f ( a ) )",
    "select a from t order by f ( a ) limit ( select g ( ) )",
    "select a from t offset g ( ) rows fetch first ( f ( 1 ) ) rows only",
    "select * from ( values ( f ( 1 ) ) ) as t ( a )",
    "select array ( select a from u ) , row ( f ( 1 ) ) , cast ( g ( ) as text ) from t",
    "select array [ f ( 1 ) , g ( ) ] , ( array [ 1 ] ) [ g ( ) ]",
    "select case f ( 1 ) when g ( ) then ( select g ( ) ) else 1 end",
    "select a from t where a in ( select a from u ) and a = any ( select f ( a ) from s . v )",
    "select a from t where a between f ( 1 ) and g ( ) or a is distinct from g ( )",
    "select a from t where a not in ( f ( 1 ) , g ( ) ) and not f ( 2 ) > 1",
    "select * from t tablesample system ( g ( ) )",
    "select * from u where ( a , a ) = ( select 1 , g ( ) )",
    "select * from t * , u as \"s.v\"",
    "select public . f ( 1 ) from public . t",
    "select distinct on ( f ( a ) ) a from t group by grouping sets ( ( a ) , ( f ( a ) , a ) ) having g ( ) > 0",
    "select coalesce ( f ( 1 ) , g ( ) ) , greatest ( g ( ) , 1 ) , nullif ( f ( 1 ) , 1 )",
    "select substring ( 'a' from f ( 1 ) for g ( ) ) , position ( 'a' in f ( 1 ) :: text )",
    "select extract ( year from now ( ) ) + f ( 1 ) , trim ( both 'a' from g ( ) :: text )",
    "select f ( a => 1 ) , - g ( ) , f ( 1 ) :: text collate \"C\" , now ( ) at time zone g ( ) :: text",
    "select * from t join lateral ( select f ( t . a ) ) q on g ( ) = 1",
    "select \"f\" ( 1 ) from \"t\" , \"s\" . \"v\"",
    "select * from json_to_recordset ( '[]' ) as x ( a int )",
    "select string_agg ( a :: text , ',' order by f ( a ) ) , percentile_cont ( 0.5 ) within group ( order by g ( ) ) from t",
];

#[tokio::test]
async fn relations_and_functions_are_those_that_the_server_finds() {
    let server = Server::start();
    let client = server.client().await;
    let fixture = "create table t (a int); create table u (a int); create schema s; create table s.v (a int);
        create function f(a int) returns int language sql as 'select 1'; create function g() returns int language sql as 'select 1'";
    client.batch_execute(fixture).await.unwrap();
    let found = "select distinct coalesce(p.proname::text, d.refobjid::regclass::text) || ' ' || d.refclassid::regclass
        from pg_depend d join pg_rewrite r on d.classid = 'pg_rewrite'::regclass and d.objid = r.oid
        left join pg_proc p on d.refclassid = 'pg_proc'::regclass and d.refobjid = p.oid
        where r.ev_class = 'seen'::regclass and d.refclassid in ('pg_class'::regclass, 'pg_proc'::regclass)
        and d.refobjid <> 'seen'::regclass order by 1";
    let bases: Vec<Vec<&str>> = NAMING.iter().map(|base| base.split(' ').collect()).collect();
    let mut numbers = Numbers(0x0123_4567_89ab_cdef);
    let (mut compared, mut unknown) = (0, 0);
    for round in 0..2_000 {
        let sql = mixed(&bases, round, &mut numbers);
        client.batch_execute("begin").await.unwrap();
        // Column names may repeat in a query, not in a view.
        let made = client.batch_execute(&format!("create view seen as select 1 as one from ({sql}) q")).await;
        let rows = if made.is_ok() { client.query(found, &[]).await.unwrap() } else { Vec::new() };
        client.batch_execute("rollback").await.unwrap();
        let Ok(script) = read(&sql) else { continue };
        let [statement] = script.statements.as_slice() else { continue };
        if made.is_err() {
            continue;
        }
        let facts = &statement.facts;
        if facts.traits.contains(Traits::RELATIONS_UNKNOWN) {
            unknown += 1;
            continue;
        }
        let server_says: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let relations = facts.relations.iter().map(|r| format!("{} pg_class", r.name.trim_start_matches("public.")));
        let functions = facts.functions.iter().map(|f| f.trim_start_matches("public."));
        let own_functions = functions.filter(|f| matches!(*f, "f" | "g")).map(|f| format!("{f} pg_proc"));
        let we_say: BTreeSet<String> = relations.chain(own_functions).collect();
        assert_eq!(we_say.into_iter().collect::<Vec<_>>(), server_says, "{sql:?}");
        compared += 1;
    }
    assert!(compared > 300, "{compared} queries compared");
    assert!(unknown * 5 < compared, "{unknown} queries are not understood, {compared} are");
}
