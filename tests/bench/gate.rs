//! The gate alone: everything that happens to a `run_sql` but finding its sandbox and running its SQL.

use std::sync::Arc;
use std::time::Duration;

use pgsandbox::admission::{Account, Book, FileBook, Gate, NoConsents};
use pgsandbox::audit::{Audit, AuditSettings, Closing, Opening, Outcome, ROTATE_BYTES_DEFAULT, Sync};
use pgsandbox::config::policies::defaults;
use pgsandbox::model::{
    Context, Impact, Origin, Phase, Principal, RequestId, SandboxFacts, SandboxId, ServerFacts, Timestamp, Transport,
    Usage,
};
use pgsandbox::operation;
use pgsandbox::policy::wasm::{Host, HostSettings};
use pgsandbox::policy::{Bundled, Loader as _, Request, Set};
use pgsandbox::sql::Reader;
use serde_json::json;

use super::Effort;
use super::report::{Report, Samples};

static BUNDLED: &[Bundled] = include!("../../policies/bundled.rs");

/// What a server has for its calls.
struct Parts {
    set: Set,
    book: FileBook,
    audit: Arc<Audit>,
    reader: Reader,
    principal: Principal,
    sandbox: SandboxFacts,
}

/// Where the time of the calls goes.
#[derive(Default)]
struct Taken {
    all: Samples,
    audit: Samples,
    arguments: Samples,
    reading: Samples,
    book: Samples,
    decide: Samples,
}

pub fn measure(report: &mut Report, effort: Effort) {
    let directory = tempfile::tempdir().unwrap();
    let settings = HostSettings { cache_directory: Some(directory.path().join("cache")), ..HostSettings::default() };
    let specs = defaults(BUNDLED).unwrap();
    let load = || Set::load(&Host::new(&settings).unwrap(), &specs, 1).unwrap();
    let mut cold = Samples::default();
    cold.time(load);
    let mut warm = Samples::default();
    for _ in 0..effort.samples(10) {
        warm.time(load);
    }
    let parts = parts(load(), directory.path());

    let count = effort.samples(5000).max(200);
    let (mut fresh, mut same) = (Taken::default(), Taken::default());
    for number in 0..count {
        // A KiB of SQL that was not seen before, and a text that is repeated.
        let text = format!("select * from app.items where id = {number} and note = '{}'", "x".repeat(900));
        parts.pass(&text, &mut fresh);
        parts.pass("select 1", &mut same);
    }
    let per_policy = Some(("the policies' answers", fresh.decide.median()));
    report.time("gate, 1 KiB of new SQL, p50", fresh.all.median(), per_policy, "60 µs");
    report.time("… p99", fresh.all.percentile(99), None, "120 µs");
    report.time("gate, `select 1` repeated, p50", same.all.median(), None, "60 µs");
    for (what, samples) in [
        ("… audit: open and close", &fresh.audit),
        ("… arguments read", &fresh.arguments),
        ("… SQL read", &fresh.reading),
        ("… rate budgets: balances, and admission with charges", &fresh.book),
        ("… policies asked and merged", &fresh.decide),
    ] {
        report.time(what, samples.median(), None, "");
    }
    one_policy(report, effort, &parts);
    report.time("loading nine policies, warm cache", warm.median(), Some(("cold", cold.median())), "");
}

/// One policy alone, in a fresh instance each time.
fn one_policy(report: &mut Report, effort: Effort, parts: &Parts) {
    let host = Host::new(&HostSettings::default()).unwrap();
    let specs = defaults(BUNDLED).unwrap();
    let context = parts.context("select 1");
    let mut floor = Samples::default();
    for name in ["row-limit", "statement-guard", "rate-limit"] {
        let spec = specs.iter().find(|spec| spec.name == name).unwrap();
        let configured = host.load(spec).unwrap().configure(&spec.settings).unwrap();
        let request = Request { context: &context, balances: &[], with_text: false };
        let mut samples = Samples::default();
        for _ in 0..effort.samples(5000) {
            let evaluation = samples.time(|| configured.evaluator.evaluate(&request));
            assert!(evaluation.answer.is_ok(), "{evaluation:?}");
            // The clock and a clone are the least that any answer takes.
            floor.time(|| context.clone());
        }
        let floor = Some(("cloning the facts natively", floor.median()));
        report.time(format!("one evaluation, fresh instance, `{name}`, p50"), samples.median(), floor, "6 µs");
    }
}

fn parts(set: Set, directory: &std::path::Path) -> Parts {
    let audit = AuditSettings {
        dir: directory.join("audit"),
        sync: Sync::Every(Duration::from_secs(1)),
        rotate_bytes: ROTATE_BYTES_DEFAULT,
    };
    let now = Timestamp::now();
    let principal = Principal {
        subject: "bench".into(),
        owner: "bench".into(),
        groups: Vec::new(),
        transport: Transport::Stdio,
        client: "bench".into(),
    };
    let sandbox = SandboxFacts {
        id: SandboxId::fresh(),
        name: "pgsandbox_bench".into(),
        owner: "bench".into(),
        group_owner: None,
        labels: Vec::new(),
        origin: Origin::Empty,
        created_at: now,
        expires_at: now.plus(Duration::from_secs(3600)),
        bytes: Some(8 << 20),
    };
    Parts {
        set,
        book: FileBook::open(directory.join("limits")).unwrap(),
        audit: Audit::open_log(audit).unwrap(),
        reader: Reader::new(4 << 20),
        principal,
        sandbox,
    }
}

impl Parts {
    fn context(&self, text: &str) -> Context {
        let script = self.reader.read(text).unwrap();
        let texts = script.statements.iter().map(|one| text[one.text.clone()].to_owned()).collect();
        Context {
            request_id: RequestId::fresh(),
            phase: Phase::Before,
            operation: "run_sql",
            impact: Impact::Writes,
            principal: self.principal.clone(),
            group_owner: None,
            now: Timestamp::now(),
            server: Some(ServerFacts {
                profile: "local".into(),
                engine: "postgres".into(),
                major: Some(15),
                managed: true,
            }),
            sandbox: Some(self.sandbox.clone()),
            principal_usage: Some(Usage { live: 1, bytes: 8 << 20 }),
            group_usage: None,
            statements: script.statements.iter().map(|one| one.facts.clone()).collect(),
            statement_texts: texts,
            clone_source: None,
            requested: pgsandbox::model::Requested::default(),
            outcome: None,
        }
    }

    /// Takes one call as far as its permit, and closes its audit entry.
    fn pass(&self, text: &str, taken: &mut Taken) {
        let arguments = json!({"databaseId": self.sandbox.id.to_string(), "sql": text, "readonly": true});
        let serde_json::Value::Object(arguments) = arguments else { unreachable!() };
        let began = std::time::Instant::now();
        let id = RequestId::fresh();
        let opening =
            Opening { id, principal: &self.principal, operation: "run_sql", now: Timestamp::now(), trace: None };
        let ticket = self.audit.open(opening).unwrap();
        let opened = began.elapsed();
        let prepared = taken.arguments.time(|| operation::find("run_sql").unwrap().read(arguments).unwrap());
        let asks = prepared.asks();
        taken.reading.time(|| self.reader.read(asks.sql.as_deref().unwrap()).unwrap());
        let context = Context { request_id: id, requested: asks.requested, ..self.context(text) };
        let account = Account::new(&context.principal, None);
        let mut book = Duration::ZERO;
        let book_began = std::time::Instant::now();
        let dyn_book: &dyn Book = &self.book;
        let balances = dyn_book.balances(&account, &self.set.buckets(&context), context.now).unwrap();
        book += book_began.elapsed();
        let decision = taken.decide.time(|| self.set.decide(&context, &balances));
        let gate = Gate { context: &context, decision: &decision, book: &self.book, consents: &NoConsents };
        let book_began = std::time::Instant::now();
        drop(prepared.admit(&gate).unwrap_or_else(|failure| panic!("{failure:?}")));
        book += book_began.elapsed();
        taken.book.add(book);
        let close_began = std::time::Instant::now();
        let closing = Closing {
            now: Timestamp::now(),
            elapsed: began.elapsed(),
            context: Some(&context),
            decision: Some(&decision),
            enforced: Some(&decision.obligations),
            target: None,
            outcome: Outcome::Ok,
        };
        self.audit.close(ticket, closing).unwrap();
        taken.audit.add(opened + close_began.elapsed());
        taken.all.add(began.elapsed());
    }
}
