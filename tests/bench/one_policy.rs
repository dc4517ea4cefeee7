//! One evaluation, four ways: in a fresh instance that stood ready, as a server does it; in one that is made for it,
//! as the first does; in one that is used again and again; and the same rule written natively.

use std::collections::BTreeMap;
use std::hint::black_box;

use pgsandbox::config::policies::defaults;
use pgsandbox::model::{Charge, Context, Mode, Obligation, PolicyDecision, Verdict};
use pgsandbox::policy::wasm::{Host, HostSettings};
use pgsandbox::policy::{Bundled, Component as Artefact, Limits, Loader as _, Request, Spec};
use serde_json::json;
use wasmtime::component::{Component, Linker};
use wasmtime::{Config, Engine, Store};

use super::Effort;
use super::report::{Report, Samples, Target};

mod bindings {
    wasmtime::component::bindgen!({ path: "wit", world: "policy" });
}

use bindings::pgsandbox::policy::types as wit;

/// A rule written natively.
type Rule = Box<dyn Fn(&Context) -> PolicyDecision>;

/// Evaluations of one reused instance: its allocator takes nothing back.
const REUSED_MAX: usize = 500;

pub fn measure(report: &mut Report, effort: Effort, bundled: &[Bundled], context: &Context) {
    let host = Host::new(&HostSettings::default()).unwrap();
    let specs = defaults(bundled).unwrap();
    let twins: [(&str, Option<Rule>); 3] = [
        ("row-limit", Some(Box::new(row_limit()))),
        ("rate-limit", Some(Box::new(rate_limit()))),
        ("statement-guard", None),
    ];
    for (name, twin) in twins {
        let spec = specs.iter().find(|spec| spec.name == name).unwrap();
        let configured = host.load(spec).unwrap().configure(&spec.settings).unwrap();
        let request = Request { context, balances: &[], with_text: false };
        let expected = configured.evaluator.evaluate(&request).answer.unwrap();
        let mut reused = Reused::new(spec);
        let [mut ready, mut behind, mut fresh, mut again, mut native] = std::array::from_fn(|_| Samples::default());
        for _ in 0..effort.samples(5000) {
            let made = fresh.time(|| configured.evaluator.evaluate(black_box(&request)));
            behind.time(|| configured.evaluator.make_ready());
            let stood = ready.time(|| configured.evaluator.evaluate(black_box(&request)));
            assert_eq!([made.answer.as_ref(), stood.answer.as_ref()], [Ok(&expected), Ok(&expected)]);
            assert_eq!(made.fuel, stood.fuel);
            reused.evaluate(context, &mut again);
            if let Some(twin) = &twin {
                let answer = native.time(|| twin(black_box(context)));
                assert_eq!(answer, expected, "the twin of `{name}` is none");
            }
        }
        let measure = format!("one evaluation, fresh instance, `{name}`, p50");
        let target = if name == "row-limit" { Target::UsMax(6.0) } else { Target::None };
        let reused = Some(("in a reused instance", again.median()));
        report.time(&measure, ready.median(), reused, target);
        report.time("… clearing it, and making the next ready, behind the answer", behind.median(), None, Target::None);
        let whole = format!("… made for it and cleared before its answer, `{name}`");
        report.time(whole, fresh.median(), reused, Target::None);
        let mut parts = vec![
            ("a store, an instance and its end (fresh less reused)", fresh.median() - again.median()),
            ("the request handed over, the rule, the answer taken (reused)", again.median()),
        ];
        if twin.is_some() {
            let floor = Some(("the same rule natively", native.median()));
            report.time(format!("… in a reused instance, `{name}`"), again.median(), floor, Target::None);
            parts.push(("the rule alone (natively)", native.median()));
        }
        report.profile(&measure, parts);
    }
    fifty_rules(report, effort, &host, bundled, context);
}

/// Measures `rules` with fifty conditions that are all looked at for a `run_sql`, and that none of them ends early.
fn fifty_rules(report: &mut Report, effort: Effort, host: &Host, bundled: &[Bundled], context: &Context) {
    let one = bundled.iter().find(|one| one.name == "rules").unwrap();
    let spec = Spec {
        name: one.name.to_owned(),
        component: Artefact::new(one.component),
        pin: None,
        mode: Mode::Enforce,
        settings: fifty_settings(),
        sections: Vec::new(),
        limits: Limits::default(),
        sees_text: false,
        of: None,
    };
    let configured = host.load(&spec).unwrap().configure(&spec.settings).unwrap();
    let request = Request { context, balances: &[], with_text: false };
    let expected = configured.evaluator.evaluate(&request);
    assert_eq!(expected.answer.as_ref().unwrap().obligations, [Obligation::MaxRows(50)]);
    let [mut ready, mut fresh] = std::array::from_fn(|_| Samples::default());
    for _ in 0..effort.samples(5000) {
        fresh.time(|| configured.evaluator.evaluate(black_box(&request)));
        configured.evaluator.make_ready();
        let stood = ready.time(|| configured.evaluator.evaluate(black_box(&request)));
        assert_eq!(stood.answer, expected.answer);
    }
    let measure = "one evaluation, fresh instance, `rules` with fifty conditions, p50";
    let floor = Some(("made for it and cleared before its answer", fresh.median()));
    report.time(measure, ready.median(), floor, Target::UsMax(15.0));
    report.figure("… its fuel", expected.fuel.to_string(), String::new(), Target::None);
}

/// Fifty rules of a condition each beside the operation, ten of each kind; one of them holds.
fn fifty_settings() -> String {
    let rule = |number: usize| {
        let condition = match number % 5 {
            0 => json!({"owners": [format!("team-{number}-*")]}),
            1 => json!({"groups": [format!("group-{number}")]}),
            2 => json!({"labels": {"data": format!("production-{number}*")}}),
            3 => json!({"statement": {"classes": ["ddl"], "relations": [{"name": format!("app_{number}.*")}]}}),
            _ => {
                json!({"time": {"days": ["mon"], "from": "00:00", "to": format!("00:{number}"), "utc_offset_minutes": number}})
            }
        };
        let mut when = condition;
        when["operations"] = json!(["run_sql"]);
        json!({"name": format!("rule {number}"), "when": when, "then": {"verdict": "deny"}})
    };
    let mut rules: Vec<_> = (10..59).map(rule).collect();
    rules.push(json!({"name": "rows", "when": {"operations": ["run_sql"], "impacts": ["writes"]}, "then": {"obligations": {"max_rows": 50}}}));
    json!({ "rules": rules }).to_string()
}

/// The rule of `row-limit`, with the bundled settings.
fn row_limit() -> impl Fn(&Context) -> PolicyDecision {
    let demands = BTreeMap::from([(
        "run_sql".to_owned(),
        vec![Obligation::MaxRows(1000), Obligation::MaxResultBytes(262_144), Obligation::StatementTimeoutMs(300_000)],
    )]);
    move |context| PolicyDecision {
        verdict: Verdict::Abstain,
        obligations: demands.get(context.operation).cloned().unwrap_or_default(),
        charges: Vec::new(),
        warnings: Vec::new(),
    }
}

/// The rule of `rate-limit`, with the bundled settings.
fn rate_limit() -> impl Fn(&Context) -> PolicyDecision {
    let costs: BTreeMap<String, u32> = BTreeMap::new();
    move |context| PolicyDecision {
        verdict: Verdict::Abstain,
        obligations: Vec::new(),
        charges: vec![Charge {
            bucket: context.impact.as_str().to_owned(),
            cost: costs.get(context.operation).copied().unwrap_or(1),
        }],
        warnings: Vec::new(),
    }
}

/// One instance for many evaluations, with fuel and clock as the program has them.
struct Reused {
    engine: Engine,
    linker: Linker<()>,
    component: Component,
    settings: String,
    instance: Option<(Store<()>, bindings::Policy)>,
    evaluations: usize,
}

impl Reused {
    fn new(spec: &Spec) -> Self {
        let mut config = Config::new();
        config.consume_fuel(true).epoch_interruption(true).concurrency_support(false);
        config.cranelift_nan_canonicalization(true);
        let engine = Engine::new(&config).unwrap();
        let component = Component::new(&engine, spec.component.bytes()).unwrap();
        let linker = Linker::new(&engine);
        Self { engine, linker, component, settings: spec.settings.clone(), instance: None, evaluations: 0 }
    }

    fn evaluate(&mut self, context: &Context, samples: &mut Samples) {
        if self.evaluations.is_multiple_of(REUSED_MAX) {
            let mut store = Store::new(&self.engine, ());
            refuel(&mut store);
            let policy = bindings::Policy::instantiate(&mut store, &self.component, &self.linker).unwrap();
            policy.call_configure(&mut store, &self.settings).unwrap().unwrap();
            self.instance = Some((store, policy));
        }
        self.evaluations += 1;
        let (store, policy) = self.instance.as_mut().unwrap();
        samples.time(|| {
            refuel(store);
            policy.call_evaluate(store, &shown(context)).unwrap()
        });
    }
}

fn refuel(store: &mut Store<()>) {
    store.set_fuel(1 << 40).unwrap();
    store.set_epoch_deadline(1 << 20);
}

/// The facts that the measured request holds, as a policy is shown them.
fn shown(context: &Context) -> wit::Request {
    let sandbox = context.sandbox.as_ref().unwrap();
    let server = context.server.as_ref().unwrap();
    wit::Request {
        phase: wit::Phase::Before,
        operation: context.operation.to_owned(),
        impact: wit::Impact::Writes,
        principal: wit::Principal {
            subject: context.principal.subject.clone(),
            owner: context.principal.owner.clone(),
            groups: context.principal.groups.clone(),
            transport: wit::Transport::Stdio,
            client: context.principal.client.clone(),
        },
        group_owner: None,
        now_ms: context.now.unix_ms(),
        server: Some(wit::Server {
            profile: server.profile.clone(),
            engine: server.engine.clone(),
            major: server.major,
            managed: server.managed,
        }),
        sandbox: Some(wit::Sandbox {
            id: sandbox.id.to_string(),
            name: sandbox.name.clone(),
            owner: sandbox.owner.clone(),
            group_owner: None,
            labels: Vec::new(),
            origin: wit::Origin::Empty,
            age_seconds: 0,
            seconds_left: 3600,
            bytes: sandbox.bytes,
        }),
        principal_usage: context.principal_usage.map(|usage| wit::Usage { live: usage.live, bytes: usage.bytes }),
        group_usage: None,
        balances: Vec::new(),
        statements: vec![wit::Statement {
            class: wit::StatementClass::Read,
            tag: context.statements[0].tag.clone(),
            traits: wit::StatementTraits::empty(),
            relations: Vec::new(),
            functions: Vec::new(),
            read_only_safe: true,
            text: None,
        }],
        clone_source: None,
        requested: wit::Requested {
            ttl_minutes: None,
            rows: None,
            timeout_ms: None,
            read_only: false,
            credentials: None,
            labels: Vec::new(),
            extensions: Vec::new(),
            command: Vec::new(),
        },
        outcome: None,
    }
}
