//! The gate alone: everything that happens to a `run_sql` but finding its sandbox and running its SQL.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pgsandbox::admission::{Account, Book, FileBook, Gate, NoConsents};
use pgsandbox::audit::{Audit, AuditSettings, Beside, Closing, Opening, Outcome, ROTATE_BYTES_DEFAULT, Sync};
use pgsandbox::config::policies::defaults;
use pgsandbox::model::{
    Context, Identity, Impact, Origin, Phase, Principal, RequestId, SandboxFacts, SandboxId, ServerFacts, Timestamp,
    Transport, Usage,
};
use pgsandbox::operation;
use pgsandbox::policy::wasm::{Host, HostSettings};
use pgsandbox::policy::{Bundled, Set};
use pgsandbox::sql::{Reader, Script};
use pgsandbox::telemetry::{continue_trace, span};
use serde_json::json;

use super::report::{Report, Samples, Target};
use super::{Effort, one_policy};

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
    facts: Samples,
    book: Samples,
    decide: Samples,
    /// Beside the call, not in it.
    ready: Samples,
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
    for (what, taken) in [("1 KiB of new SQL", &fresh), ("`select 1` repeated", &same)] {
        let [p50, p99] = ["p50", "p99"].map(|percentile| format!("gate, {what}, {percentile}"));
        let floor = Some(("the policies' answers alone", taken.decide.median()));
        report.time(&p50, taken.all.median(), floor, Target::UsMax(60.0));
        let floor = Some(("the policies' answers alone", taken.decide.percentile(99)));
        report.time(&p99, taken.all.percentile(99), floor, Target::UsMax(120.0));
        report.profile(&p50, taken.parts(50));
        report.profile(&p99, taken.parts(99));
        let beside = "… beside it, while the statement runs: instances cleared and made ready";
        report.time(beside, taken.ready.median(), None, Target::None);
    }
    report.notes.gate_us = same.all.median();
    one_policy::measure(
        report,
        effort,
        BUNDLED,
        &parts.context(RequestId::fresh(), &parts.reader.read("select 1").unwrap()),
    );
    let floor = Some(("without anything kept", cold.median()));
    report.time("loading nine policies, warm cache", warm.median(), floor, Target::None);
    report.notes.policies_us = warm.median();
}

impl Taken {
    fn parts(&self, percent: usize) -> [(&'static str, f64); 7] {
        let of = |samples: &Samples| samples.percentile(percent);
        let parts = [&self.audit, &self.arguments, &self.reading, &self.facts, &self.book, &self.decide];
        let rest = of(&self.all) - parts.into_iter().map(of).sum::<f64>();
        [
            ("policies asked and merged", of(&self.decide)),
            ("audit: opened and closed", of(&self.audit)),
            ("rate budgets: balances, and admission with charges", of(&self.book)),
            ("SQL read", of(&self.reading)),
            ("arguments read", of(&self.arguments)),
            ("facts put together", of(&self.facts)),
            ("span, ids and clocks", rest.max(0.0)),
        ]
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
        identity: Identity::Certain,
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
    fn context(&self, request_id: RequestId, script: &Script) -> Context {
        Context {
            request_id,
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
            statement_texts: Vec::new(),
            clone_source: None,
            requested: pgsandbox::model::Requested::default(),
            outcome: None,
        }
    }

    /// Takes one call as far as its permit, and closes its audit entry.
    fn pass(&self, text: &str, taken: &mut Taken) {
        let arguments = json!({"databaseId": self.sandbox.id.to_string(), "sql": text, "readonly": true});
        let serde_json::Value::Object(arguments) = arguments else { unreachable!() };
        let began = Instant::now();
        let id = RequestId::fresh();
        let span = span::request(id, "tools/call", "run_sql", Transport::Stdio);
        let trace = continue_trace(&span, None);
        let _within = span.enter();
        let opening_began = Instant::now();
        let opening = Opening {
            id,
            principal: &self.principal,
            operation: "run_sql",
            now: Timestamp::now(),
            trace,
            frees: false,
        };
        let ticket = self.audit.open(opening).unwrap();
        let opened = opening_began.elapsed();
        let prepared = taken.arguments.time(|| operation::find("run_sql").unwrap().read(arguments).unwrap());
        let asks = prepared.asks();
        let script = taken.reading.time(|| self.reader.read(asks.sql.as_deref().unwrap()).unwrap());
        let context = taken.facts.time(|| Context { requested: asks.requested.clone(), ..self.context(id, &script) });
        let account = Account::new(&context.principal, None);
        let mut book = Duration::ZERO;
        let book_began = Instant::now();
        let dyn_book: &dyn Book = &self.book;
        let balances = dyn_book.balances(&account, &self.set.buckets(&context), context.now).unwrap();
        book += book_began.elapsed();
        let decision = taken.decide.time(|| self.set.decide(&context, &balances));
        let gate = Gate { context: &context, decision: &decision, book: &self.book, consents: &NoConsents };
        let book_began = Instant::now();
        drop(prepared.admit(&gate).unwrap_or_else(|failure| panic!("{failure:?}")));
        book += book_began.elapsed();
        taken.book.add(book);
        let close_began = Instant::now();
        let closing = Closing {
            now: Timestamp::now(),
            elapsed: began.elapsed(),
            context: Some(&context),
            decision: Some(&decision),
            enforced: Some(&decision.obligations),
            target: None,
            beside: Beside::default(),
            outcome: Outcome::Ok,
        };
        self.audit.close(ticket, closing).unwrap();
        taken.audit.add(opened + close_began.elapsed());
        taken.all.add(began.elapsed());
        // As a server does it, beside the statement.
        taken.ready.time(|| self.set.make_ready("run_sql", &self.principal.owner));
    }
}
