//! A permit opens what it was given for, under the obligations in it, and nothing else.

use std::sync::Arc;

use pgsandbox::admission::{Admissible, Effective, MemoryBook, NoConsents, Permit, admit};
use pgsandbox::model::{
    Code, Context, CredentialAccess, Decision, Failure, Generation, Identity, Impact, Obligation, ObligationKind,
    Obligations, Phase, Principal, RequestId, Requested, SandboxId, SchemaFilter, Scope, Silent, Timestamp, Transport,
};
use pgsandbox::sandbox::{CleanupFilter, Core, CreateRequest, Sandbox};
use tokio_util::sync::CancellationToken;

use super::toy_engine::{Ground, any_permit, request, upkeep};

/// Meets everything by leaving it to the core.
#[derive(Clone, Debug)]
pub struct Anything;

impl Admissible for Anything {
    const MEETS: &'static [ObligationKind] = &ObligationKind::ALL;

    fn apply(&mut self, _effective: &Effective<'_>) -> Result<Vec<String>, Failure> {
        Ok(Vec::new())
    }
}

/// What a caller gets through the gate.
struct Ask<'a> {
    impact: Impact,
    target: Option<&'a Sandbox>,
    group_owner: Option<&'a str>,
    obligations: &'a [Obligation],
}

impl Ask<'_> {
    fn permit(&self) -> Permit<Anything> {
        let mut obligations = Obligations::default();
        for obligation in self.obligations {
            obligations.add("some-policy", obligation.clone());
        }
        let context = Context {
            request_id: RequestId::fresh(),
            phase: Phase::Before,
            operation: "some_operation",
            impact: self.impact,
            principal: Principal {
                subject: "ann".to_owned(),
                owner: "ann".to_owned(),
                groups: Vec::new(),
                transport: Transport::Stdio,
                client: String::new(),
                identity: Identity::Certain,
            },
            group_owner: self.group_owner.map(str::to_owned),
            now: Timestamp::now(),
            server: None,
            sandbox: self.target.map(Sandbox::facts),
            principal_usage: None,
            group_usage: None,
            statements: Vec::new(),
            statement_texts: Vec::new(),
            clone_source: None,
            requested: Requested::default(),
            outcome: None,
        };
        let decision = Decision {
            refusal: None,
            obligations,
            charges: Vec::new(),
            warnings: Vec::new(),
            reports: Vec::new(),
            generation: Generation { number: 1, digest: String::new() },
            would: None,
        };
        admit(Anything, &context, &decision, &MemoryBook::default(), &NoConsents).unwrap().permit
    }
}

fn to(impact: Impact, target: &Sandbox) -> Permit<Anything> {
    under(impact, target, &[])
}

pub fn under(impact: Impact, target: &Sandbox, obligations: &[Obligation]) -> Permit<Anything> {
    Ask { impact, target: Some(target), group_owner: None, obligations }.permit()
}

pub async fn make(core: &Core, group_owner: Option<&str>, obligations: &[Obligation]) -> Result<Sandbox, Failure> {
    make_as_asked(core, group_owner, obligations, request()).await
}

async fn make_as_asked(
    core: &Core,
    group_owner: Option<&str>,
    obligations: &[Obligation],
    request: CreateRequest,
) -> Result<Sandbox, Failure> {
    let permit = Ask { impact: Impact::Creates, target: None, group_owner, obligations }.permit();
    core.create(&permit, request, Arc::new(Silent), CancellationToken::new()).await.map(|created| created.sandbox)
}

pub fn code<T>(result: Result<T, Failure>) -> Option<Code> {
    result.err().map(|failure| failure.code)
}

const OWNER: CredentialAccess = CredentialAccess::Owner;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permit_for_one_sandbox_or_impact_opens_no_other() {
    let ground = Ground::new();
    let core = ground.core().await;
    let (mine, other) = (make(&core, None, &[]).await.unwrap(), make(&core, None, &[]).await.unwrap());
    let id: SandboxId = mine.id;
    for impact in Impact::ALL {
        let (here, there) = (to(impact, &mine), to(impact, &other));
        let refused = Some(Code::Internal);
        let unless = |allowed: Impact| if impact == allowed { None } else { refused };
        assert_eq!(code(core.extend(&there, id, 30).await), refused, "{impact:?}");
        assert_eq!(code(core.extend(&here, id, 30).await), unless(Impact::Writes), "{impact:?}");
        assert_eq!(code(core.credentials(&there, id, OWNER).await), refused, "{impact:?}");
        assert_eq!(code(core.credentials(&here, id, OWNER).await), unless(Impact::Discloses), "{impact:?}");
        assert_eq!(code(core.credentials_for_command(&there, id).await), refused, "{impact:?}");
        assert_eq!(code(core.credentials_for_command(&here, id).await), unless(Impact::ReachesOut), "{impact:?}");
        assert_eq!(code(core.connection_of(&there, id, OWNER).await), refused, "{impact:?}");
        assert_eq!(code(core.connection_of(&here, id, OWNER).await), unless(Impact::ReachesOut), "{impact:?}");
        assert_eq!(code(core.verify(&there, id).await), refused, "{impact:?}");
        assert_eq!(code(core.verify(&here, id).await), unless(Impact::Reads), "{impact:?}");
        assert_eq!(code(core.session(&there, id, OWNER).await.map(drop)), refused, "{impact:?}");
        // The toy has no schema to be read; but it was asked for one, by who may look, keep what is seen, or run a command.
        let whole = SchemaFilter::default();
        let looks = [Impact::Reads, Impact::Creates, Impact::ReachesOut].contains(&impact);
        let asked = if looks { Some(Code::InvalidConfiguration) } else { refused };
        assert_eq!(code(core.schema(&there, id, &whole).await), refused, "{impact:?}");
        assert_eq!(code(core.schema(&here, id, &whole).await), asked, "{impact:?}");
        // Nobody has said where schemas are kept, so one that may have them is told so.
        let lists = core.snapshots(&here).await.map(drop).unwrap_err();
        assert_eq!(lists.message.contains("the permit for"), impact != Impact::Reads, "{impact:?}: {lists}");
        let removes = core.delete_snapshot(&here, "any").await.unwrap_err();
        assert_eq!(removes.message.contains("the permit for"), impact != Impact::Destroys, "{impact:?}: {removes}");
        assert_eq!(code(core.delete(&there, id, None).await), refused, "{impact:?}");
        if impact != Impact::Destroys {
            assert_eq!(code(core.delete(&here, id, None).await), refused, "{impact:?}");
        }
        // A permit for one sandbox is none for all, nor for a new one; keys are the program's own.
        assert_eq!(code(core.cleanup(&here, &CleanupFilter::default(), false).await), refused, "{impact:?}");
        assert_eq!(code(core.rotate_keys(&here).await), refused, "{impact:?}");
        let create = core.create(&here, request(), Arc::new(Silent), CancellationToken::new()).await;
        assert_eq!(code(create), refused, "{impact:?}");
    }
    ground.check_settled(2, "nothing was opened").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_of_policies_hold_where_sandboxes_are_reserved() {
    let ground = Ground::new();
    let core = ground.core().await;
    let of_group = [Obligation::MaxLiveSandboxes { scope: Scope::Group, limit: 1 }];
    make(&core, Some("a"), &of_group).await.unwrap();
    let failure = make(&core, Some("a"), &of_group).await.unwrap_err();
    let expected = "group owner `a` has 1 live sandbox on profile `local`; the limit is 1, set by `some-policy`";
    assert_eq!((failure.code, failure.message.as_str()), (Code::QuotaExceeded, expected));
    let of_principal = [Obligation::MaxLiveSandboxes { scope: Scope::Principal, limit: 1 }];
    assert_eq!(code(make(&core, Some("b"), &of_principal).await), Some(Code::QuotaExceeded));
    ground.check_settled(1, "refused").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_shortens_lives() {
    let ground = Ground::new();
    let core = ground.core().await;
    let short = [Obligation::MaxTtlMinutes(10)];
    let made = make(&core, None, &short).await.unwrap();
    assert_eq!(made.expires_at.ms_since(made.created_at), 10 * 60_000);
    let long = CreateRequest { ttl_minutes: Some(11), ..request() };
    assert_eq!(code(make_as_asked(&core, None, &short, long).await), Some(Code::InvalidTtl));
    assert_eq!(code(core.extend(&under(Impact::Writes, &made, &short), made.id, 11).await), Some(Code::InvalidTtl));
    ground.sql("update pgsandbox.sandboxes set created_at = now() - interval '5 minutes'").await;
    let whole = core.extend(&under(Impact::Writes, &made, &short), made.id, 9).await;
    assert_eq!(code(whole), Some(Code::InvalidTtl), "its whole life counts");
    core.extend(&under(Impact::Writes, &made, &short), made.id, 4).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_only_use_never_gets_the_owner_role() {
    let ground = Ground::new();
    let core = ground.core().await;
    let made = make(&core, None, &[]).await.unwrap();
    let demand = [Obligation::ReadOnly];
    let unmet = Some(Code::ObligationUnmet);
    let disclose = under(Impact::Discloses, &made, &demand);
    assert_eq!(code(core.credentials(&disclose, made.id, OWNER).await), unmet);
    core.credentials(&disclose, made.id, CredentialAccess::ReadOnly).await.unwrap();
    for impact in [Impact::Reads, Impact::Writes] {
        let permit = under(impact, &made, &demand);
        assert_eq!(code(core.session(&permit, made.id, OWNER).await.map(drop)), unmet, "{impact:?}");
        // The toy has no sessions to lend; but it was asked for one.
        let asked = code(core.session(&permit, made.id, CredentialAccess::ReadOnly).await.map(drop));
        assert_eq!(asked, Some(Code::InvalidConfiguration), "{impact:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writing_is_refused_over_the_byte_quota_and_reading_is_not() {
    let ground = Ground::new();
    let core = ground.core().await;
    let made = make(&core, None, &[]).await.unwrap();
    upkeep(&core).await.unwrap();
    let bytes = |limit| [Obligation::MaxDatabaseBytes { scope: Scope::Principal, limit }];
    let asked = Some(Code::InvalidConfiguration);
    for (impact, access, limit, expected) in [
        (Impact::Writes, OWNER, 999, Some(Code::QuotaExceeded)),
        (Impact::Writes, OWNER, 1000, asked),
        (Impact::Reads, OWNER, 999, asked),
        (Impact::Writes, CredentialAccess::ReadOnly, 999, asked),
    ] {
        let permit = under(impact, &made, &bytes(limit));
        let got = code(core.session(&permit, made.id, access).await.map(drop));
        assert_eq!(got, expected, "{impact:?} {access:?} {limit}");
    }
    assert_eq!(code(make(&core, None, &bytes(1000)).await), Some(Code::QuotaExceeded));
    core.delete(&any_permit(), made.id, None).await.unwrap();
}
