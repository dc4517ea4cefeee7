//! Requests and decisions as values that people and programs read, in the world's own words.

use serde_json::{Value, json};

use super::cases::{Asked, Word, obligation_text};
use crate::model::{
    Bucket, CloneSource, Context, OutcomeFacts, PolicyDecision, Principal, Requested, SandboxFacts, ServerFacts,
    StatementFacts, Usage, Verdict,
};

/// Returns the request as a policy sees it.
pub fn request(asked: &Asked) -> Value {
    let Context { principal, now, .. } = &asked.context;
    let context = &asked.context;
    let balances = asked.balances.iter().map(|one| json!({"bucket": one.bucket, "remaining": one.remaining}));
    let texts = &context.statement_texts;
    let statements = context.statements.iter().enumerate();
    json!({
        "phase": context.phase.as_str(),
        "operation": context.operation,
        "impact": context.impact.as_str(),
        "principal": of_principal(principal),
        "group-owner": context.group_owner,
        "now-ms": now.unix_ms(),
        "server": context.server.as_ref().map(of_server),
        "sandbox": context.sandbox.as_ref().map(|facts| of_sandbox(facts, context)),
        "principal-usage": context.principal_usage.map(of_usage),
        "group-usage": context.group_usage.map(of_usage),
        "balances": balances.collect::<Vec<_>>(),
        "statements": statements.map(|(index, facts)| of_statement(facts, texts.get(index))).collect::<Vec<_>>(),
        "clone-source": context.clone_source.as_ref().map(of_source),
        "requested": of_requested(&context.requested),
        "outcome": context.outcome.as_ref().map(of_outcome),
    })
}

/// Returns all that a decision holds.
pub fn decision(decision: &PolicyDecision) -> Value {
    let PolicyDecision { verdict, obligations, charges, warnings } = decision;
    let denial = match verdict {
        Verdict::Deny(denial) => Some(json!({
            "code": denial.code,
            "message": denial.message,
            "audit": denial.audit,
            "retryAfterMs": denial.retry_after_ms,
        })),
        Verdict::Pass | Verdict::Abstain => None,
    };
    let charges = charges.iter().map(|charge| json!({"bucket": charge.bucket, "cost": charge.cost}));
    json!({
        "verdict": verdict.as_str(),
        "denial": denial,
        "obligations": obligations.iter().map(obligation_text).collect::<Vec<_>>(),
        "charges": charges.collect::<Vec<_>>(),
        "warnings": warnings,
    })
}

/// Returns a bucket as its policy declares it.
pub fn bucket(bucket: &Bucket) -> Value {
    json!({
        "name": bucket.name,
        "burst": bucket.burst,
        "perInterval": bucket.per_interval,
        "intervalMs": bucket.interval_ms,
    })
}

fn of_principal(principal: &Principal) -> Value {
    json!({
        "subject": principal.subject,
        "owner": principal.owner,
        "groups": principal.groups,
        "transport": principal.transport.as_str(),
        "client": principal.client,
    })
}

fn of_server(server: &ServerFacts) -> Value {
    json!({"profile": server.profile, "engine": server.engine, "major": server.major, "managed": server.managed})
}

fn of_sandbox(sandbox: &SandboxFacts, context: &Context) -> Value {
    json!({
        "id": sandbox.id.to_string(),
        "name": sandbox.name,
        "owner": sandbox.owner,
        "group-owner": sandbox.group_owner,
        "labels": of_labels(&sandbox.labels),
        "origin": sandbox.origin.as_str(),
        "age-seconds": context.now.ms_since(sandbox.created_at).div_euclid(1000).max(0),
        "seconds-left": sandbox.expires_at.ms_since(context.now).div_euclid(1000),
        "bytes": sandbox.bytes,
    })
}

fn of_labels(labels: &[(String, String)]) -> Value {
    labels.iter().map(|(key, value)| json!({"key": key, "value": value})).collect()
}

fn of_usage(usage: Usage) -> Value {
    json!({"live": usage.live, "bytes": usage.bytes})
}

fn of_statement(facts: &StatementFacts, text: Option<&String>) -> Value {
    let relations = facts.relations.iter();
    let relations = relations.map(|relation| json!({"name": relation.name, "access": relation.access.as_str()}));
    json!({
        "class": facts.class.as_str(),
        "tag": facts.tag,
        "traits": facts.traits.words().collect::<Vec<_>>(),
        "relations": relations.collect::<Vec<_>>(),
        "functions": facts.functions,
        "read-only-safe": facts.read_only_safe,
        "text": text,
    })
}

fn of_source(source: &CloneSource) -> Value {
    json!({
        "name": source.name,
        "host": source.host,
        "port": source.port,
        "database": source.database,
        "user": source.user,
        "tls": Word(source.tls).as_str(),
        "production": source.production,
        "schema-only": source.schema_only,
        "reason": source.reason,
    })
}

fn of_requested(requested: &Requested) -> Value {
    json!({
        "ttl-minutes": requested.ttl_minutes,
        "rows": requested.rows,
        "timeout-ms": requested.timeout_ms,
        "read-only": requested.read_only,
        "credentials": requested.credentials.map(|access| Word(access).as_str()),
        "labels": of_labels(&requested.labels),
        "extensions": requested.extensions,
        "command": requested.command,
    })
}

fn of_outcome(outcome: &OutcomeFacts) -> Value {
    json!({
        "rows": outcome.rows,
        "bytes": outcome.bytes,
        "elapsed-ms": outcome.elapsed_ms,
        "columns": outcome.columns,
    })
}
