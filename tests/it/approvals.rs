//! Approvals: given by another of the group, for exactly one request, used once, and over in time.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio as Pipe};

use pgsandbox::admission::{MemoryBook, NoConsents, Permit, admit};
use pgsandbox::model::{
    Code, Context, Decision, Failure, Generation, Identity, Impact, Obligation, Obligations, Origin, Phase, Principal,
    RequestId, Requested, SandboxFacts, SandboxId, Timestamp, Transport,
};
use pgsandbox::sandbox::{Approved, Asked, Core, Demanded, Waiting};
use serde_json::{Map, Value, json};

use crate::harness::cluster;
use crate::hostile::code;
use crate::obligations::{demanding, write_policies};
use crate::permits::Anything;
use crate::program::{Cli, Home, Transport as _};
use crate::toy_engine::Ground;

fn principal(subject: &str, groups: &[&str]) -> Principal {
    Principal {
        subject: subject.to_owned(),
        owner: subject.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        transport: Transport::Http,
        client: String::new(),
        identity: Identity::Certain,
    }
}

fn context(subject: &str, groups: &[&str], operation: &'static str, impact: Impact) -> Context {
    Context {
        request_id: RequestId::fresh(),
        phase: Phase::Before,
        operation,
        impact,
        principal: principal(subject, groups),
        group_owner: None,
        now: Timestamp::now(),
        server: None,
        sandbox: None,
        principal_usage: None,
        group_usage: None,
        statements: Vec::new(),
        statement_texts: Vec::new(),
        clone_source: None,
        requested: Requested::default(),
        outcome: None,
    }
}

fn permit(subject: &str, groups: &[&str], impact: Impact) -> Permit<Anything> {
    let decision = Decision {
        refusal: None,
        obligations: Obligations::default(),
        charges: Vec::new(),
        warnings: Vec::new(),
        reports: Vec::new(),
        generation: Generation { number: 1, digest: String::new() },
        would: None,
    };
    let context = context(subject, groups, "approve", impact);
    admit(Anything, &context, &decision, &MemoryBook::default(), &NoConsents).unwrap().permit
}

/// A request of `ana`'s that two programs of hers may make.
#[derive(Clone)]
struct Request {
    subject: &'static str,
    arguments: Map<String, Value>,
    groups: BTreeSet<String>,
}

impl Request {
    fn new(arguments: Value, groups: &[&str]) -> Self {
        let Value::Object(arguments) = arguments else { panic!() };
        Self { subject: "ana", arguments, groups: groups.iter().map(|group| (*group).to_owned()).collect() }
    }

    /// Makes it: takes what was approved, or notes that it waits. Returns whether it may be made, and its digest.
    async fn make(&self, core: &Core) -> (bool, String) {
        let context = context(self.subject, &["staff"], "clone_database", Impact::ReachesOut);
        let asked = Asked {
            context: &context,
            arguments: &self.arguments,
            groups: &self.groups,
            demanded: &Demanded::default(),
        };
        let approved = core.approved(&asked).await.unwrap();
        let taken = core.take_approvals(&approved, &asked).await.unwrap();
        if !taken {
            core.ask_for_approval(&asked).await.unwrap();
        }
        (taken, approved.digest)
    }

    async fn look(&self, core: &Core) -> Approved {
        let context = context(self.subject, &["staff"], "clone_database", Impact::ReachesOut);
        core.approved(&Asked {
            context: &context,
            arguments: &self.arguments,
            groups: &self.groups,
            demanded: &Demanded::default(),
        })
        .await
        .unwrap()
    }
}

async fn approve(core: &Core, subject: &str, groups: &[&str], digest: &str) -> Result<Vec<String>, Failure> {
    let approval = core.approve(&permit(subject, groups, Impact::Writes), digest).await?;
    Ok(approval.request.approved)
}

async fn waiting(core: &Core, subject: &str, groups: &[&str]) -> usize {
    core.waiting_approvals(&permit(subject, groups, Impact::Reads), None).await.unwrap().0.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_of_the_group_approves_one_request_once() {
    let ground = Ground::new();
    let core = ground.core().await;
    let request = Request::new(json!({"source": "prod", "ttlMinutes": 5}), &["dba"]);
    let (may, digest) = request.make(&core).await;
    assert!(!may);

    let refused = async |subject: &str, groups: &[&str], digest: &str| {
        approve(&core, subject, groups, digest).await.unwrap_err().code
    };
    assert_eq!(refused("ana", &["dba"], &digest).await, Code::Denied, "whoever asks, whatever its groups");
    assert_eq!(refused("bob", &["staff"], &digest).await, Code::InvalidArguments, "of another group");
    assert_eq!(refused("bob", &[], &digest).await, Code::InvalidArguments, "of no group");
    let other = "0".repeat(64);
    assert_eq!(refused("dora", &["dba"], &other).await, Code::InvalidArguments, "nothing of that digest waits");
    assert_eq!(refused("dora", &["dba"], "x").await, Code::InvalidArguments);
    let (not_there, not_mine) = (approve(&core, "bob", &[], &other).await, approve(&core, "bob", &[], &digest).await);
    assert_eq!(not_there.unwrap_err(), not_mine.unwrap_err(), "what is others' is told as what is not there");
    assert!(!request.make(&core).await.0);

    let seen =
        (waiting(&core, "ana", &[]).await, waiting(&core, "dora", &["dba"]).await, waiting(&core, "bob", &[]).await);
    assert_eq!(seen, (1, 1, 0));
    assert_eq!(approve(&core, "dora", &["dba"], &digest).await.unwrap(), ["dba"]);

    // Other arguments, another operation's caller: another request.
    let another = Request::new(json!({"source": "prod", "ttlMinutes": 6}), &["dba"]);
    let (may, other_digest) = another.make(&core).await;
    assert!(!may && other_digest != digest);
    let theirs = Request { subject: "eve", ..request.clone() };
    let (may, other_digest) = theirs.make(&core).await;
    assert!(!may && other_digest != digest);
    // Another group than the one that approved, and both.
    assert!(!Request { groups: BTreeSet::from(["sec".to_owned()]), ..request.clone() }.make(&core).await.0);
    assert!(
        !Request { groups: BTreeSet::from(["dba".to_owned(), "sec".to_owned()]), ..request.clone() }
            .make(&core)
            .await
            .0
    );

    // Restarted in between, it still counts, once.
    let again = ground.core().await;
    assert_eq!(request.make(&again).await, (true, digest.clone()));
    assert!(!request.make(&again).await.0, "used twice");
    assert!(!request.make(&core).await.0, "used twice, by another server");
    assert_eq!(approve(&core, "dora", &["dba"], &digest).await.unwrap(), ["dba"], "it waits anew");
    assert!(request.make(&core).await.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_that_a_repository_records_is_part_of_what_is_approved() {
    let ground = Ground::new();
    let core = ground.core().await;
    let request = Request::new(json!({"repoPath": "/work/shop"}), &["dba"]);
    let digest_of = async |command: &[&str]| {
        let mut context = context("ana", &["staff"], "seed_database", Impact::ReachesOut);
        context.requested.command = command.iter().map(|word| (*word).to_owned()).collect();
        let asked = Asked {
            context: &context,
            arguments: &request.arguments,
            groups: &request.groups,
            demanded: &Demanded::default(),
        };
        core.ask_for_approval(&asked).await.unwrap();
        core.approved(&asked).await.unwrap().digest
    };
    let seed = digest_of(&["npm", "run", "seed"]).await;
    assert_ne!(digest_of(&["npm", "run", "steal"]).await, seed);
    assert_eq!(digest_of(&["npm", "run", "seed"]).await, seed);
    let (shown, _) = core.waiting_approvals(&permit("ana", &[], Impact::Reads), None).await.unwrap();
    let commands: Vec<_> = shown.iter().map(|request| request.what["command"].to_string()).collect();
    assert!(commands.contains(&r#"["npm","run","steal"]"#.to_owned()), "{commands:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approver_sees_all_that_was_asked_and_who_demands_the_approval() {
    let ground = Ground::new();
    let core = ground.core().await;
    let behind = format!("/* {} */ truncate t", "x".repeat(9_000));
    let arguments = json!({"sql": behind, "deep": [[[[[[[[[["far"]]]]]]]]]]});
    let Value::Object(arguments) = arguments else { panic!() };
    let groups = BTreeSet::from(["dba".to_owned()]);
    let demanded = Demanded {
        policies: [("dba".to_owned(), BTreeSet::from(["destructive-guard".to_owned()]))].into(),
        said: vec![("rules".to_owned(), "it is late".to_owned())],
    };
    let context = context("ana", &[], "run_sql", Impact::Writes);
    let asked = Asked { context: &context, arguments: &arguments, groups: &groups, demanded: &demanded };
    core.ask_for_approval(&asked).await.unwrap();
    let dora = permit("dora", &["dba"], Impact::Reads);
    let one =
        async |digest: Option<&str>| -> Waiting { core.waiting_approvals(&dora, digest).await.unwrap().0.remove(0) };
    let listed = one(None).await;
    let cut: Vec<_> = listed.cut.iter().map(|cut| cut.at.as_str()).collect();
    assert_eq!(cut, ["/arguments/sql", "/arguments/deep/0/0/0/0/0/0"], "{listed:?}");
    assert_eq!(listed.cut[0].bytes, behind.len());
    assert_eq!(listed.what["demandedBy"], json!({"dba": ["destructive-guard"]}));
    assert_eq!(listed.what["said"], json!([{"policy": "rules", "text": "it is late"}]));
    let whole = one(Some(&listed.digest)).await;
    assert_eq!(whole.what["arguments"], Value::Object(arguments.clone()));
    assert!(whole.cut.is_empty());
    let (others, _) = core.waiting_approvals(&permit("bob", &[], Impact::Reads), Some(&listed.digest)).await.unwrap();
    assert!(others.is_empty(), "{others:?}");
    let error = core.waiting_approvals(&dora, Some("x")).await.unwrap_err();
    assert_eq!(error.code, Code::InvalidArguments);

    // What nobody can read, nobody approves.
    let Value::Object(arguments) = json!({"sql": "x".repeat(64 << 10)}) else { panic!() };
    let refused = core.ask_for_approval(&Asked { arguments: &arguments, ..asked }).await.unwrap_err();
    assert_eq!(refused.code, Code::ApprovalRequired, "{refused:?}");
    assert_eq!(core.waiting_approvals(&dora, None).await.unwrap().0.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_group_that_is_demanded_must_approve() {
    let ground = Ground::new();
    let core = ground.core().await;
    let request = Request::new(json!({"source": "prod"}), &["dba", "sec"]);
    let digest = request.make(&core).await.1;
    let listed = async || core.waiting_approvals(&permit("ana", &[], Impact::Reads), None).await.unwrap().0.remove(0);
    assert_eq!(approve(&core, "dora", &["dba", "x"], &digest).await.unwrap(), ["dba"]);
    assert!(!request.make(&core).await.0);
    let half = listed().await;
    assert!(!half.is_approved() && half.usable_until.is_none(), "{half:?}");
    let given = core.approve(&permit("sam", &["sec"], Impact::Writes), &digest).await.unwrap();
    assert_eq!(given.request.approved, ["dba", "sec"]);
    let whole = listed().await;
    assert!(whole.is_approved() && whole.usable_until < Some(whole.expires_at), "{whole:?}");
    // It can be used until the first of its approvals is over.
    assert!(whole.usable_until.is_some_and(|until| until <= given.usable_until), "{whole:?}");
    assert_eq!(given.request.usable_until, whole.usable_until);
    assert!(request.make(&core).await.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_that_want_one_approval_one_gets_it_and_what_is_given_back_counts_again() {
    let ground = Ground::new();
    let cores = [ground.core().await, ground.core().await];
    let request = Request::new(json!({"source": "prod"}), &["dba"]);
    let digest = request.make(&cores[0]).await.1;
    for _ in 0..5 {
        approve(&cores[1], "dora", &["dba"], &digest).await.unwrap();
        let makers = (0..16).map(|n| {
            let (core, request) = (cores[n % 2].clone(), request.clone());
            tokio::spawn(async move { request.make(&core).await.0 })
        });
        let mut made = 0;
        for maker in makers.collect::<Vec<_>>() {
            made += usize::from(maker.await.unwrap());
        }
        assert_eq!(made, 1);
    }
    approve(&cores[0], "dora", &["dba"], &digest).await.unwrap();
    let context = context("ana", &[], "clone_database", Impact::ReachesOut);
    let asked = Asked {
        context: &context,
        arguments: &request.arguments,
        groups: &request.groups,
        demanded: &Demanded::default(),
    };
    let approved = cores[0].approved(&asked).await.unwrap();
    assert!(cores[0].take_approvals(&approved, &asked).await.unwrap());
    assert!(request.look(&cores[0]).await.groups.is_empty());
    cores[0].give_approvals_back(&approved, &context).await.unwrap();
    assert!(request.make(&cores[1]).await.0);
    // Whoever did not take it gives nothing back.
    cores[0].give_approvals_back(&approved, &context).await.unwrap();
    assert!(!request.make(&cores[1]).await.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_over_moved_or_made_by_hand_does_not_count() {
    let ground = Ground::new();
    let core = ground.core().await;
    let (one, other) = (Request::new(json!({"n": 1}), &["dba"]), Request::new(json!({"n": 2}), &["dba"]));
    let (digest, _) = (one.make(&core).await.1, other.make(&core).await);
    approve(&core, "dora", &["dba"], &digest).await.unwrap();
    // Copied to another request, it is that one's approval for nobody.
    ground
        .sql(
            "insert into pgsandbox.approvals select r.id, a.group_name, a.sealed, a.expires_at
              from pgsandbox.approvals a, pgsandbox.approval_requests r where r.id <> a.request_id",
        )
        .await;
    assert!(!other.make(&core).await.0);
    // Its time is in the seal.
    ground.sql("update pgsandbox.approvals set expires_at = expires_at + interval '1 day'").await;
    assert!(!one.make(&core).await.0);
    ground.sql("update pgsandbox.approvals set expires_at = expires_at - interval '1 day'").await;
    assert_eq!(one.look(&core).await.groups.len(), 1);
    // Another group's name on it.
    ground.sql("update pgsandbox.approvals set group_name = 'sec'").await;
    assert!(!Request { groups: BTreeSet::from(["sec".to_owned()]), ..one.clone() }.make(&core).await.0);
    ground.sql("update pgsandbox.approvals set group_name = 'dba'").await;
    // A request that is pointed at another's digest.
    ground.sql("update pgsandbox.approval_requests set digest = sha256(digest) where true").await;
    assert!(!one.make(&core).await.0);
    assert_eq!(waiting(&core, "ana", &[]).await, 1, "only what was just asked anew");

    let late = Request::new(json!({"n": 3}), &["dba"]);
    let digest = late.make(&core).await.1;
    approve(&core, "dora", &["dba"], &digest).await.unwrap();
    ground.sql("update pgsandbox.approvals set expires_at = now() - interval '1 second'").await;
    assert!(!late.make(&core).await.0, "an approval that is over");
    ground.sql("update pgsandbox.approval_requests set expires_at = now() - interval '1 second'").await;
    assert_eq!(approve(&core, "dora", &["dba"], &digest).await.unwrap_err().code, Code::InvalidArguments);
    assert!(!late.make(&core).await.0);
    assert_eq!(ground.count("select count(*) from pgsandbox.approval_requests").await, 1, "what is over goes");
    let shown = ground.texts("select encode(sealed, 'escape') from pgsandbox.approval_requests").await;
    assert!(!shown[0].contains("clone_database"), "sealed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_subject_does_not_fill_the_metadata_and_sees_no_others_requests() {
    let ground = Ground::new();
    let core = ground.core().await;
    for n in 0..100 {
        Request::new(json!({"n": n}), &["dba"]).make(&core).await;
    }
    let context = context("ana", &[], "clone_database", Impact::ReachesOut);
    let more = Request::new(json!({"n": 100}), &["dba"]);
    let asked =
        Asked { context: &context, arguments: &more.arguments, groups: &more.groups, demanded: &Demanded::default() };
    assert_eq!(core.ask_for_approval(&asked).await.unwrap_err().code, Code::QuotaExceeded);
    // One that waits already waits on, and others are not held up.
    Request::new(json!({"n": 7}), &["dba"]).make(&core).await;
    Request { subject: "eve", ..more.clone() }.make(&core).await;
    assert_eq!(waiting(&core, "eve", &[]).await, 1);
    assert_eq!(waiting(&core, "dora", &["dba"]).await, 101);
    // A password in an argument is shown to nobody.
    let url = "postgresql://app:s3cret@db.internal/app";
    Request { subject: "eve", ..Request::new(json!({"sourceDatabaseUrl": url, "a": [url]}), &["dba"]) }
        .make(&core)
        .await;
    let (shown, more) = core.waiting_approvals(&permit("eve", &[], Impact::Reads), None).await.unwrap();
    assert!(!more);
    let shown = shown.iter().map(|request| request.what.to_string()).collect::<String>();
    assert!(shown.contains("app@db.internal:5432/app") && !shown.contains("s3cret"), "{shown}");
    for n in 0..110 {
        let subject = if n < 90 { "joe" } else { "kim" };
        Request { subject, ..Request::new(json!({"n": n}), &["dba"]) }.make(&core).await;
    }
    let (shown, more) = core.waiting_approvals(&permit("dora", &["dba"], Impact::Reads), None).await.unwrap();
    assert_eq!((shown.len(), more), (200, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_asked_about_a_sandbox_that_is_gone_waits_no_longer() {
    let ground = Ground::new();
    let core = ground.core().await;
    let now = Timestamp::now();
    let gone = SandboxFacts {
        id: SandboxId::fresh(),
        name: "it_gone".to_owned(),
        owner: "ana".to_owned(),
        group_owner: None,
        labels: Vec::new(),
        origin: Origin::Empty,
        created_at: now,
        expires_at: now,
        bytes: None,
    };
    let arguments = Map::new();
    let groups = BTreeSet::from(["dba".to_owned()]);
    for (sandbox, waits) in [(Some(gone), 0), (None, 1)] {
        let context = Context { sandbox, ..context("ana", &[], "clone_database", Impact::ReachesOut) };
        core.ask_for_approval(&Asked {
            context: &context,
            arguments: &arguments,
            groups: &groups,
            demanded: &Demanded::default(),
        })
        .await
        .unwrap();
        assert_eq!(waiting(&core, "dora", &["dba"]).await, waits);
    }
}

/// A user of this machine, with a state directory of its own and the profile and the keys of all.
pub(crate) struct User {
    id: Option<(u32, u32)>,
    variables: Vec<(&'static str, String)>,
    program: PathBuf,
    /// A program that starts it, with its arguments.
    through: Vec<String>,
}

impl User {
    pub(crate) fn new(id: Option<(u32, u32)>, name: &str, dir: &Path, config: &Value) -> Self {
        let file = dir.join(format!("{name}.json"));
        fs::write(&file, config.to_string()).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        if let Some((uid, gid)) = id {
            chown(&file, Some(uid), Some(gid)).unwrap();
        }
        let state = dir.join(format!("{name}-state")).display().to_string();
        let variables = vec![("PGSANDBOX_HOME", state), ("PGSANDBOX_CONFIG", file.display().to_string())];
        Self { id, variables, program: dir.join("pgsandbox"), through: Vec::new() }
    }

    /// Returns the same user with another's numbers, where this machine lets it make a namespace of its own.
    fn in_a_namespace_as_root(&self) -> Option<Self> {
        let through = ["unshare", "--user", "--map-user=0", "--map-group=0"].map(str::to_owned).to_vec();
        let there = Self { through, id: self.id, variables: self.variables.clone(), program: self.program.clone() };
        let mut tried = there.command("/bin/true");
        tried.output().is_ok_and(|output| output.status.success()).then_some(there)
    }

    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut words = self.through.iter().map(OsString::from).chain([program.as_ref().to_owned()]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).env_clear().env("PATH", "/usr/bin:/bin").current_dir("/");
        if let Some((uid, gid)) = self.id {
            command.uid(uid).gid(gid);
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(&self.program);
        command.args(arguments).envs(self.variables.iter().cloned()).stdin(Pipe::null()).output().unwrap()
    }

    pub(crate) fn call(&self, operation: &str, input: &Value) -> Value {
        let output = self.run(&["tool", operation, "--format", "json", "--input", &input.to_string()]);
        let text = String::from_utf8(output.stdout).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}{}", String::from_utf8_lossy(&output.stderr)))
    }
}

pub(crate) fn account(name: &str) -> Option<(u32, u32)> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let line = passwd.lines().find(|line| line.starts_with(&format!("{name}:")))?.to_owned();
    let mut numbers = line.split(':').skip(2).map(|number| number.parse().unwrap());
    Some((numbers.next()?, numbers.next()?))
}

/// Needs root, to be two users of this machine.
#[test]
fn two_users_of_a_machine_share_a_profile_and_one_approves_what_the_other_asks() {
    let Some(agent) = account("nobody").filter(|_| rustix::process::geteuid().is_root()) else { return };
    let home = Home::with_cluster();
    let dir = home.path().join("shared");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777)).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_pgsandbox"), dir.join("pgsandbox")).unwrap();
    let mut guest = demanding(&[Obligation::Approval("root".into())]);
    guest.concerns = vec!["create_database".into()];
    write_policies(&home, &[(&guest.name, guest.component(), pgsandbox::model::Mode::Enforce)]);
    let database = format!("approvals_{}", std::process::id());
    let cluster = cluster();
    crate::harness::block_on(async {
        let admin = cluster.superuser("postgres").await;
        admin.batch_execute(&format!("create database {database}")).await.unwrap();
    });
    let url = cluster.superuser_url().replace("/postgres?", &format!("/{database}?"));
    assert!(home.run(&["policy", "list"]).status.success());
    // The keys are shared by a program that prints them.
    fs::copy(home.state().join("master.keys"), dir.join("keys")).unwrap();
    fs::set_permissions(dir.join("keys"), fs::Permissions::from_mode(0o644)).unwrap();
    let shared = json!({
        "profiles": [{"name": "team", "adminUrl": url}],
        "policies": home.path().join("policies.toml"),
        "keyCommand": ["/bin/cat", dir.join("keys")],
    });
    let mut alone = shared.clone();
    alone.as_object_mut().unwrap().remove("keyCommand");
    let agent_user = User::new(Some(agent), "agent", &dir, &shared);
    let operator = User::new(None, "operator", &dir, &shared);
    let stranger = User::new(None, "stranger", &dir, &alone);

    let input = json!({"nameHint": "approved", "ttlMinutes": 5});
    let refused = agent_user.call("create_database", &input);
    assert_eq!(code(&refused), "approval_required", "{refused:#}");
    let handle = refused["detailHandles"][0].as_str().unwrap();
    let digest = handle.strip_prefix("approval:").unwrap();
    assert!(refused["errors"][0]["hint"].as_str().unwrap().contains(digest), "{refused:#}");
    let approve = json!({"requestDigest": digest});
    assert_eq!(code(&agent_user.call("approve", &approve)), "denied");
    // Another name for its owner makes nobody somebody else.
    let mut renamed = User::new(Some(agent), "agent", &dir, &shared);
    renamed.variables.push(("PGSANDBOX_OWNER", "operator".to_owned()));
    assert_eq!(code(&renamed.call("approve", &approve)), "denied");
    assert_eq!(code(&stranger.call("approve", &approve)), "invalid_arguments", "it has other keys");

    // In a user namespace anybody may be root.
    if let Some(as_root) = agent_user.in_a_namespace_as_root() {
        let refused = as_root.call("approve", &approve);
        assert_eq!(code(&refused), "denied", "{refused:#}");
        assert!(refused["errors"][0]["message"].as_str().unwrap().contains("user namespace"), "{refused:#}");
        let checks = as_root.call("doctor", &json!({}))["result"]["checks"].to_string();
        assert!(checks.contains("runs in a user namespace"), "{checks}");
        assert_eq!(as_root.call("list_approvals", &json!({}))["result"]["requests"], json!([]));
        let asked = as_root.call("create_database", &json!({"nameHint": "as_another"}));
        assert_eq!((code(&asked), &asked["detailHandles"]), ("denied", &json!([])), "{asked:#}");
    }

    let listed = operator.call("list_approvals", &json!({}));
    assert_eq!(listed["result"]["requests"].as_array().unwrap().len(), 1, "{listed:#}");
    let request = &listed["result"]["requests"][0];
    assert_eq!((&request["requestDigest"], &request["yoursToApprove"]), (&json!(digest), &json!(true)), "{listed:#}");
    assert_eq!(request["request"]["subject"], "nobody", "{listed:#}");
    assert_eq!((&request["state"], request.get("usableUntil")), (&json!("waiting"), None), "{listed:#}");
    let approved = operator.run(&["approve", "--request-digest", digest]);
    assert!(approved.status.success(), "{}", String::from_utf8_lossy(&approved.stdout));
    let listed = operator.call("list_approvals", &json!({}));
    let request = &listed["result"]["requests"][0];
    assert_eq!(request["state"], "approved", "{listed:#}");
    assert!(
        request["usableUntil"].is_string() && listed["summary"].as_str().unwrap().starts_with("0 requests waiting")
    );
    let shown = operator.run(&["list-approvals", "--format", "text"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    let row = shown.lines().nth(2).unwrap_or_default();
    assert!(row.starts_with(digest) && row.contains("approved") && row.contains("create_database"), "{shown}");
    let other = agent_user.call("create_database", &json!({"nameHint": "approved", "ttlMinutes": 6}));
    assert_eq!(code(&other), "approval_required", "{other:#}");
    // Refused by the core before its first act, it is given back.
    let made = agent_user.call("create_database", &input);
    assert_eq!(code(&made), "ok", "{made:#}");
    assert_eq!(code(&agent_user.call("create_database", &input)), "approval_required", "used twice");
    let id = made["result"]["databaseId"].clone();
    assert_eq!(code(&agent_user.call("delete_database", &json!({"databaseId": id, "wait": true}))), "ok");
}

#[test]
fn alone_nobody_approves_and_an_explanation_notes_nothing() {
    let home = crate::obligations::home_with_policy_file();
    let mut guest = demanding(&[Obligation::Approval("root".into()), Obligation::Approval("dba".into())]);
    guest.concerns = vec!["create_database".into()];
    write_policies(&home, &[(&guest.name, guest.component(), pgsandbox::model::Mode::Enforce)]);
    let mut cli = Cli::new(&home);
    assert_eq!(code(&cli.call("list_databases", &json!({}))), "ok");
    let told = cli.call("explain_policy", &json!({"operation": "create_database", "arguments": {"ttlMinutes": 5}}));
    assert_eq!(told["result"]["refusal"]["code"], "approval_required", "{told:#}");
    assert_eq!(cli.call("list_approvals", &json!({}))["result"]["requests"], json!([]));
    let refused = cli.call("create_database", &json!({"ttlMinutes": 5}));
    assert_eq!(told["result"]["refusal"]["hint"], refused["errors"][0]["hint"], "{told:#}\n{refused:#}");
    let waiting = cli.call("list_approvals", &json!({}))["result"]["requests"].clone();
    assert_eq!((waiting.as_array().unwrap().len(), &waiting[0]["yoursToApprove"]), (1, &json!(false)), "{waiting:#}");
    let approve = json!({"requestDigest": waiting[0]["requestDigest"]});
    assert_eq!(code(&cli.call("approve", &approve)), "denied");
    assert_eq!(cli.call("list_databases", &json!({}))["result"]["databases"], json!([]));
}
