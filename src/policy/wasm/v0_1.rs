//! Converts between the program's values and those of `pgsandbox:policy@0.1.0`.
//!
//! Each supported version of the world has one such file. Facts are copied as they are; what a policy
//! answers is taken over without judging it, which is the policy kernel's part.

use crate::model::{
    Access, Balance, Bucket, Charge, CloneSource, Context, CredentialAccess, Denial, Impact, Obligation, Origin,
    OutcomeFacts, Phase, PolicyDecision, Principal, Relation, Requested, SandboxFacts, Scope, ServerFacts,
    StatementClass, StatementFacts, TlsMode, Traits, Transport, Usage, Verdict,
};
use crate::policy::{Description, Problem, Request};

/// The package that is offered.
pub(super) const PACKAGE: &str = "pgsandbox:policy@0.1.0";
/// The one import a policy may have: it holds types and no function.
pub(super) const TYPES: &str = "pgsandbox:policy/types@0.1.0";

mod bindings {
    #![allow(missing_docs, unreachable_pub, unsafe_code, clippy::all, clippy::restriction, reason = "generated")]

    wasmtime::component::bindgen!({
        path: "wit",
        world: "policy",
        // What a policy is shown is lent to it: nothing of a request is copied but into the guest's memory.
        ownership: Borrowing { duplicate_if_necessary: true },
    });
}

/// The part of the world that an evaluation needs: what is exported beside it is not looked up in each instance.
mod deciding {
    #![allow(missing_docs, unreachable_pub, unsafe_code, clippy::all, clippy::restriction, reason = "generated")]

    wasmtime::component::bindgen!({
        path: "wit",
        inline: "
            package pgsandbox:host;
            world decider {
                use pgsandbox:policy/types@0.1.0.{request, decision};
                export evaluate: func(request: request) -> decision;
            }
        ",
        world: "pgsandbox:host/decider",
        with: { "pgsandbox:policy/types@0.1.0": super::bindings::pgsandbox::policy::types },
        ownership: Borrowing { duplicate_if_necessary: true },
    });
}

use bindings::pgsandbox::policy::types as wit;
pub(super) use bindings::{Policy, PolicyPre};
pub(super) use deciding::{Decider, DeciderPre};

/// Converts what a policy is shown, and hands it to `then`.
pub(super) fn show<R>(request: &Request<'_>, then: impl FnOnce(wit::Request<'_>) -> R) -> R {
    let Request { context, balances, with_text } = request;
    let now = context.now;
    let groups = texts(&context.principal.groups);
    let balances: Vec<_> = balances.iter().map(balance).collect();
    let sandbox_id = context.sandbox.as_ref().map(|sandbox| sandbox.id.to_string()).unwrap_or_default();
    let sandbox_labels = context.sandbox.as_ref().map(|sandbox| labels(&sandbox.labels)).unwrap_or_default();
    let names: Vec<_> = context.statements.iter().map(Names::of).collect();
    let statements = statements(context, &names, *with_text);
    let requested_labels = labels(&context.requested.labels);
    let (extensions, command) = (texts(&context.requested.extensions), texts(&context.requested.command));
    let columns = context.outcome.as_ref().map(|outcome| texts(&outcome.columns)).unwrap_or_default();
    then(wit::Request {
        phase: phase(context.phase),
        operation: context.operation,
        impact: impact(context.impact),
        principal: principal(&context.principal, &groups),
        group_owner: context.group_owner.as_deref(),
        now_ms: now.unix_ms(),
        server: context.server.as_ref().map(server),
        sandbox: context.sandbox.as_ref().map(|facts| sandbox(facts, context, &sandbox_id, &sandbox_labels)),
        principal_usage: context.principal_usage.map(usage),
        group_usage: context.group_usage.map(usage),
        balances: &balances,
        statements: &statements,
        clone_source: context.clone_source.as_ref().map(clone_source),
        requested: requested(&context.requested, &requested_labels, &extensions, &command),
        outcome: context.outcome.as_ref().map(|facts| outcome(facts, &columns)),
    })
}

/// The names in one statement, as the bindings want them.
struct Names<'a> {
    relations: Vec<wit::Relation<'a>>,
    functions: Vec<&'a str>,
}

impl<'a> Names<'a> {
    fn of(facts: &'a StatementFacts) -> Self {
        Self { relations: facts.relations.iter().map(relation).collect(), functions: texts(&facts.functions) }
    }
}

fn texts(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

/// Counts the parts of a request that a policy may look at one by one.
pub(super) fn facts(context: &Context) -> usize {
    let of_statement = |s: &StatementFacts| 1 + s.relations.len() + s.functions.len();
    let columns = context.outcome.as_ref().map_or(0, |outcome| outcome.columns.len());
    context.statements.iter().map(of_statement).sum::<usize>() + columns + context.requested.command.len()
}

fn phase(phase: Phase) -> wit::Phase {
    match phase {
        Phase::Visible => wit::Phase::Visible,
        Phase::Before => wit::Phase::Before,
        Phase::After => wit::Phase::After,
    }
}

fn impact(impact: Impact) -> wit::Impact {
    match impact {
        Impact::Reads => wit::Impact::Reads,
        Impact::Creates => wit::Impact::Creates,
        Impact::Writes => wit::Impact::Writes,
        Impact::Destroys => wit::Impact::Destroys,
        Impact::Discloses => wit::Impact::Discloses,
        Impact::ReachesOut => wit::Impact::ReachesOut,
    }
}

fn principal<'a>(principal: &'a Principal, groups: &'a [&'a str]) -> wit::Principal<'a> {
    wit::Principal {
        subject: &principal.subject,
        owner: &principal.owner,
        groups,
        transport: match principal.transport {
            Transport::Stdio => wit::Transport::Stdio,
            Transport::Http => wit::Transport::Http,
            Transport::Cli => wit::Transport::Cli,
            Transport::Internal => wit::Transport::Internal,
        },
        client: &principal.client,
    }
}

fn server(server: &ServerFacts) -> wit::Server<'_> {
    wit::Server { profile: &server.profile, engine: &server.engine, major: server.major, managed: server.managed }
}

fn sandbox<'a>(
    sandbox: &'a SandboxFacts,
    context: &Context,
    id: &'a str,
    labels: &'a [wit::LabelParam<'a>],
) -> wit::Sandbox<'a> {
    wit::Sandbox {
        id,
        name: &sandbox.name,
        owner: &sandbox.owner,
        group_owner: sandbox.group_owner.as_deref(),
        labels,
        origin: match sandbox.origin {
            Origin::Empty => wit::Origin::Empty,
            Origin::Clone => wit::Origin::Clone,
            Origin::Fork => wit::Origin::Fork,
            Origin::Template => wit::Origin::Template,
        },
        age_seconds: u64::try_from(context.now.ms_since(sandbox.created_at).div_euclid(1000)).unwrap_or(0),
        // Rounded down: a sandbox that is over by a millisecond has less than nothing left.
        seconds_left: sandbox.expires_at.ms_since(context.now).div_euclid(1000),
        bytes: sandbox.bytes,
    }
}

fn labels(labels: &[(String, String)]) -> Vec<wit::LabelParam<'_>> {
    labels.iter().map(|(key, value)| wit::LabelParam { key, value }).collect()
}

fn usage(usage: Usage) -> wit::Usage {
    wit::Usage { live: usage.live, bytes: usage.bytes }
}

fn balance(balance: &Balance) -> wit::Balance<'_> {
    wit::Balance { bucket: &balance.bucket, remaining: balance.remaining.into() }
}

fn statements<'a>(context: &'a Context, names: &'a [Names<'a>], with_text: bool) -> Vec<wit::Statement<'a>> {
    let text = |index: usize| context.statement_texts.get(index).filter(|_| with_text).map(String::as_str);
    let numbered = context.statements.iter().zip(names).enumerate();
    numbered.map(|(index, (facts, names))| statement(facts, names, text(index))).collect()
}

fn statement<'a>(facts: &'a StatementFacts, names: &'a Names<'a>, text: Option<&'a str>) -> wit::Statement<'a> {
    wit::Statement {
        class: class(facts.class),
        tag: &facts.tag,
        traits: traits(facts.traits),
        relations: &names.relations,
        functions: &names.functions,
        read_only_safe: facts.read_only_safe,
        text,
    }
}

fn class(class: StatementClass) -> wit::StatementClass {
    match class {
        StatementClass::Read => wit::StatementClass::Read,
        StatementClass::ReadLock => wit::StatementClass::ReadLock,
        StatementClass::Write => wit::StatementClass::Write,
        StatementClass::Ddl => wit::StatementClass::Ddl,
        StatementClass::Code => wit::StatementClass::Code,
        StatementClass::AccessControl => wit::StatementClass::AccessControl,
        StatementClass::Cluster => wit::StatementClass::Cluster,
        StatementClass::Transaction => wit::StatementClass::Transaction,
        StatementClass::Session => wit::StatementClass::Session,
        StatementClass::Show => wit::StatementClass::Show,
        StatementClass::Procedural => wit::StatementClass::Procedural,
        StatementClass::CopyIn => wit::StatementClass::CopyIn,
        StatementClass::CopyOut => wit::StatementClass::CopyOut,
        StatementClass::CopyServer => wit::StatementClass::CopyServer,
        StatementClass::Maintenance => wit::StatementClass::Maintenance,
        StatementClass::Replication => wit::StatementClass::Replication,
        StatementClass::Notify => wit::StatementClass::Notify,
        StatementClass::Lock => wit::StatementClass::Lock,
        StatementClass::Prepared => wit::StatementClass::Prepared,
        StatementClass::Cursor => wit::StatementClass::Cursor,
        StatementClass::Utility => wit::StatementClass::Utility,
        StatementClass::Explain => wit::StatementClass::Explain,
        StatementClass::Empty => wit::StatementClass::Empty,
        StatementClass::Unparsed => wit::StatementClass::Unparsed,
    }
}

fn traits(traits: Traits) -> wit::StatementTraits {
    const PAIRS: [(Traits, wit::StatementTraits); 11] = [
        (Traits::DATA_MODIFYING_CTE, wit::StatementTraits::DATA_MODIFYING_CTE),
        (Traits::DYNAMIC_SQL, wit::StatementTraits::DYNAMIC_SQL),
        (Traits::VOLATILE_FUNCTION, wit::StatementTraits::VOLATILE_FUNCTION),
        (Traits::SERVER_FILE, wit::StatementTraits::SERVER_FILE),
        (Traits::NETWORK, wit::StatementTraits::NETWORK),
        (Traits::SESSION_SETTING, wit::StatementTraits::SESSION_SETTING),
        (Traits::OPAQUE_BODY, wit::StatementTraits::OPAQUE_BODY),
        (Traits::NO_WHERE, wit::StatementTraits::NO_WHERE),
        (Traits::UNQUALIFIED_RELATION, wit::StatementTraits::UNQUALIFIED_RELATION),
        (Traits::UNKNOWN_FUNCTION, wit::StatementTraits::UNKNOWN_FUNCTION),
        (Traits::RELATIONS_UNKNOWN, wit::StatementTraits::RELATIONS_UNKNOWN),
    ];
    let mut converted = wit::StatementTraits::empty();
    for (own, theirs) in PAIRS {
        if traits.contains(own) {
            converted |= theirs;
        }
    }
    converted
}

fn relation(relation: &Relation) -> wit::Relation<'_> {
    wit::Relation {
        name: &relation.name,
        access: match relation.access {
            Access::Reads => wit::Access::Reads,
            Access::Writes => wit::Access::Writes,
            Access::Defines => wit::Access::Defines,
        },
    }
}

fn clone_source(source: &CloneSource) -> wit::CloneSource<'_> {
    wit::CloneSource {
        name: source.name.as_deref(),
        host: &source.host,
        port: source.port,
        database: &source.database,
        user: &source.user,
        tls: match source.tls {
            TlsMode::Disable => wit::Tls::Disabled,
            TlsMode::Prefer => wit::Tls::Prefer,
            TlsMode::Require => wit::Tls::Require,
            TlsMode::VerifyCa => wit::Tls::VerifyCa,
            TlsMode::VerifyFull => wit::Tls::VerifyFull,
        },
        production: source.production,
        schema_only: source.schema_only,
        reason: source.reason.as_deref(),
    }
}

fn requested<'a>(
    requested: &Requested,
    labels: &'a [wit::LabelParam<'a>],
    extensions: &'a [&'a str],
    command: &'a [&'a str],
) -> wit::Requested<'a> {
    wit::Requested {
        ttl_minutes: requested.ttl_minutes,
        rows: requested.rows,
        timeout_ms: requested.timeout_ms,
        read_only: requested.read_only,
        credentials: requested.credentials.map(|access| match access {
            CredentialAccess::Owner => wit::CredentialAccess::Owner,
            CredentialAccess::ReadOnly => wit::CredentialAccess::ReadOnly,
        }),
        labels,
        extensions,
        command,
    }
}

fn outcome<'a>(outcome: &OutcomeFacts, columns: &'a [&'a str]) -> wit::Outcome<'a> {
    wit::Outcome { rows: outcome.rows, bytes: outcome.bytes, elapsed_ms: outcome.elapsed_ms, columns }
}

/// Takes over what a policy says of itself.
pub(super) fn description(description: wit::Description) -> Description {
    Description {
        name: description.name,
        version: description.version,
        covers: description.covers,
        concerns: description.concerns,
        phases: description
            .phases
            .into_iter()
            .map(|phase| match phase {
                wit::Phase::Visible => Phase::Visible,
                wit::Phase::Before => Phase::Before,
                wit::Phase::After => Phase::After,
            })
            .collect(),
        codes: description.codes,
        settings_schema: description.settings_schema,
    }
}

/// Takes over what a policy made of its settings.
pub(super) fn configured(answer: Result<Vec<wit::Bucket>, Vec<wit::Problem>>) -> Result<Vec<Bucket>, Vec<Problem>> {
    let bucket = |bucket: wit::Bucket| Bucket {
        name: bucket.name,
        burst: bucket.burst,
        per_interval: bucket.per_interval,
        interval_ms: bucket.interval_ms,
    };
    let problem = |problem: wit::Problem| Problem { path: problem.path, message: problem.message };
    match answer {
        Ok(buckets) => Ok(buckets.into_iter().map(bucket).collect()),
        Err(problems) => Err(problems.into_iter().map(problem).collect()),
    }
}

/// Takes over what a policy decided.
pub(super) fn decision(decision: wit::Decision) -> PolicyDecision {
    PolicyDecision {
        verdict: match decision.verdict {
            wit::Verdict::Pass => Verdict::Pass,
            wit::Verdict::Abstain => Verdict::Abstain,
            wit::Verdict::Deny(denial) => Verdict::Deny(Denial {
                code: denial.code,
                message: denial.message,
                audit: denial.audit,
                retry_after_ms: denial.retry_after_ms,
            }),
        },
        obligations: decision.obligations.into_iter().map(obligation).collect(),
        charges: decision
            .charges
            .into_iter()
            .map(|charge| Charge { bucket: charge.bucket, cost: charge.cost })
            .collect(),
        warnings: decision.warnings,
    }
}

fn obligation(obligation: wit::Obligation) -> Obligation {
    match obligation {
        wit::Obligation::ReadOnly => Obligation::ReadOnly,
        wit::Obligation::MaxRows(value) => Obligation::MaxRows(value),
        wit::Obligation::MaxResultBytes(value) => Obligation::MaxResultBytes(value),
        wit::Obligation::StatementTimeoutMs(value) => Obligation::StatementTimeoutMs(value),
        wit::Obligation::MaxTtlMinutes(value) => Obligation::MaxTtlMinutes(value),
        wit::Obligation::MaxLiveSandboxes(quota) => {
            Obligation::MaxLiveSandboxes { scope: scope(quota.scope), limit: quota.limit }
        }
        wit::Obligation::MaxDatabaseBytes(quota) => {
            Obligation::MaxDatabaseBytes { scope: scope(quota.scope), limit: quota.limit }
        }
        wit::Obligation::Mask(mask) => Obligation::Mask { relation: mask.relation, column: mask.column },
        wit::Obligation::RequireLabel(key) => Obligation::RequireLabel(key),
        wit::Obligation::AddLabel(label) => Obligation::AddLabel { key: label.key, value: label.value },
        wit::Obligation::Consent(question) => Obligation::Consent(question),
        wit::Obligation::Approval(group) => Obligation::Approval(group),
    }
}

fn scope(scope: wit::Scope) -> Scope {
    match scope {
        wit::Scope::Principal => Scope::Principal,
        wit::Scope::Group => Scope::Group,
    }
}

#[cfg(test)]
mod tests {
    use crate::model::{Fingerprint, Identity, RequestId, SandboxId, Timestamp};

    use super::*;

    /// Reduces a name to letters, so that `ReadLock`, `read-lock` and `READ_LOCK` are one.
    fn letters(name: &str) -> String {
        let last = name.rsplit("::").next().unwrap_or(name);
        last.chars().filter(|c| c.is_ascii_alphanumeric()).collect::<String>().to_lowercase()
    }

    fn check_word(own: &str, theirs: impl std::fmt::Debug) {
        assert_eq!(letters(&format!("{theirs:?}")), letters(own));
    }

    #[test]
    fn words_of_closed_sets_are_the_same_on_both_sides() {
        for own in StatementClass::ALL {
            check_word(own.as_str(), class(own));
        }
        for own in Impact::ALL {
            check_word(own.as_str(), impact(own));
        }
        for own in [Phase::Visible, Phase::Before, Phase::After] {
            check_word(own.as_str(), phase(own));
        }
        for (own, word) in Traits::NAMED {
            let converted = traits(own);
            assert!(letters(&format!("{converted:?}")).ends_with(&letters(word)), "{converted:?} is not {word}");
        }
        let mut all = Traits::default();
        Traits::NAMED.into_iter().for_each(|(own, _)| all.insert(own));
        assert_eq!(traits(all), wit::StatementTraits::all());
        assert_eq!(traits(Traits::default()), wit::StatementTraits::empty());
    }

    fn context() -> Context {
        let facts = StatementFacts {
            class: StatementClass::Write,
            tag: "UPDATE".into(),
            traits: Traits::NO_WHERE,
            relations: vec![Relation { name: "public.t".into(), access: Access::Writes }],
            functions: vec!["lower".into()],
            read_only_safe: false,
            fingerprint: Fingerprint(7),
        };
        Context {
            request_id: RequestId::fresh(),
            phase: Phase::After,
            operation: "run_sql",
            impact: Impact::Writes,
            principal: Principal {
                subject: "token".into(),
                owner: "team".into(),
                groups: vec!["a".into(), "b".into()],
                transport: Transport::Http,
                client: "agent".into(),
                identity: Identity::Certain,
            },
            group_owner: Some("beneath".into()),
            now: Timestamp::from_unix_ms(10_000),
            server: Some(ServerFacts {
                profile: "local".into(),
                engine: "postgres".into(),
                major: Some(18),
                managed: true,
            }),
            sandbox: Some(SandboxFacts {
                id: SandboxId::fresh(),
                name: "pgsb_x".into(),
                owner: "other".into(),
                group_owner: None,
                labels: vec![("k".into(), "v".into())],
                origin: Origin::Fork,
                created_at: Timestamp::from_unix_ms(7_999),
                expires_at: Timestamp::from_unix_ms(9_999),
                bytes: Some(5),
            }),
            principal_usage: Some(Usage { live: 1, bytes: 2 }),
            group_usage: Some(Usage { live: 3, bytes: 4 }),
            statements: vec![facts.clone(), facts],
            statement_texts: vec!["UPDATE t SET secret = 1".into(), "UPDATE t SET secret = 2".into()],
            clone_source: Some(CloneSource {
                name: None,
                host: "h".into(),
                port: 5432,
                database: "d".into(),
                user: "u".into(),
                tls: TlsMode::VerifyCa,
                production: true,
                schema_only: false,
                reason: Some("because".into()),
            }),
            requested: Requested {
                ttl_minutes: Some(1),
                rows: Some(2),
                timeout_ms: Some(3),
                read_only: true,
                credentials: Some(CredentialAccess::ReadOnly),
                labels: vec![("l".into(), "m".into())],
                extensions: vec!["vector".into()],
                command: vec!["make".into(), "seed".into()],
            },
            outcome: Some(OutcomeFacts { rows: 1, bytes: 2, elapsed_ms: 3, columns: vec!["c".into()] }),
        }
    }

    #[test]
    fn every_fact_is_shown() {
        let context = context();
        let balances = [Balance { policy: "p".into(), bucket: "b".into(), remaining: 9 }];
        show(&Request { context: &context, balances: &balances, with_text: false }, |shown| {
            assert_eq!((shown.operation, shown.now_ms), ("run_sql", 10_000));
            assert_eq!((shown.principal.subject, shown.principal.owner), ("token", "team"));
            assert_eq!((shown.principal.groups, shown.principal.transport), (&["a", "b"][..], wit::Transport::Http));
            assert_eq!(shown.group_owner, Some("beneath"));
            let server = shown.server.unwrap();
            assert_eq!((server.profile, server.major, server.managed), ("local", Some(18), true));
            let sandbox = shown.sandbox.unwrap();
            assert_eq!(sandbox.id, context.sandbox.as_ref().unwrap().id.to_string());
            assert_eq!((sandbox.owner, sandbox.origin, sandbox.bytes), ("other", wit::Origin::Fork, Some(5)));
            assert_eq!((sandbox.labels[0].key, sandbox.labels[0].value), ("k", "v"));
            assert_eq!((sandbox.age_seconds, sandbox.seconds_left), (2, -1), "over by a millisecond is over");
            assert_eq!((shown.principal_usage.unwrap().live, shown.group_usage.unwrap().bytes), (1, 4));
            assert_eq!((shown.balances[0].bucket, shown.balances[0].remaining), ("b", 9));
            let statement = &shown.statements[1];
            assert_eq!((statement.tag, statement.read_only_safe), ("UPDATE", false));
            assert_eq!((statement.relations[0].access, statement.functions), (wit::Access::Writes, &["lower"][..]));
            let source = shown.clone_source.unwrap();
            assert_eq!((source.port, source.tls, source.production), (5432, wit::Tls::VerifyCa, true));
            let requested = shown.requested;
            assert_eq!((requested.ttl_minutes, requested.rows, requested.timeout_ms), (Some(1), Some(2), Some(3)));
            assert_eq!(requested.credentials, Some(wit::CredentialAccess::ReadOnly));
            assert_eq!((requested.read_only, requested.extensions), (true, &["vector"][..]));
            assert_eq!((requested.command, requested.labels[0].value), (&["make", "seed"][..], "m"));
            assert_eq!(shown.outcome.unwrap().columns, ["c"]);
        });
        assert_eq!(facts(&context), 2 * 3 + 1 + 2);
    }

    #[test]
    fn texts_are_shown_in_order_and_only_where_granted() {
        let context = context();
        let texts = |with_text: bool| -> Vec<_> {
            show(&Request { context: &context, balances: &[], with_text }, |shown| {
                shown.statements.iter().map(|statement| statement.text.map(str::to_owned)).collect()
            })
        };
        assert_eq!(texts(false), [None, None]);
        let own: Vec<_> = context.statement_texts.iter().cloned().map(Some).collect();
        assert_eq!(texts(true), own);
        // Nothing else of the request holds it, in whatever words.
        let request = Request { context: &context, balances: &[], with_text: false };
        show(&request, |shown| assert!(!format!("{shown:?}").contains("secret")));
    }
}
