//! Builds test policies from WAT, without a Wasm toolchain.
//!
//! A guest answers with values that lie prepared in its memory, unless a file of `tests/guests` says otherwise.

use std::fmt::Write as _;
use std::path::Path;

use pgsandbox::model::{
    Bucket, Context, Identity, Impact, Mode, Obligation, Phase, PolicyDecision, Principal, RequestId, Requested, Scope,
    Timestamp, Transport, Verdict,
};
use pgsandbox::policy::{Component, Limits, Problem, Spec};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// Where the prepared answers begin.
pub(crate) const BASE: u32 = 1024;

/// Returns a request to write that has nothing special about it.
pub(crate) fn context() -> Context {
    Context {
        request_id: RequestId::fresh(),
        phase: Phase::Before,
        operation: "run_sql",
        impact: Impact::Writes,
        principal: Principal {
            subject: "me".into(),
            owner: "me".into(),
            groups: vec!["dev".into()],
            transport: Transport::Stdio,
            client: "test".into(),
            identity: Identity::Certain,
        },
        group_owner: None,
        now: Timestamp::from_unix_ms(1_800_000_000_000),
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

/// A policy to be built.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    pub(crate) name: String,
    pub(crate) covers: Vec<String>,
    pub(crate) concerns: Vec<String>,
    pub(crate) phases: Vec<Phase>,
    pub(crate) codes: Vec<String>,
    /// What `configure` answers.
    pub(crate) configured: Result<Vec<Bucket>, Vec<Problem>>,
    /// What `evaluate` answers.
    pub(crate) decision: PolicyDecision,
    /// Functions that replace the prepared ones.
    pub(crate) functions: String,
    /// Pages of memory at the start.
    pub(crate) pages: u32,
}

impl Guest {
    /// Returns a guest that passes everything.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            covers: vec!["*".to_owned()],
            concerns: vec!["*".to_owned()],
            phases: Vec::new(),
            codes: vec!["no".to_owned()],
            configured: Ok(Vec::new()),
            decision: PolicyDecision {
                verdict: Verdict::Pass,
                obligations: Vec::new(),
                charges: Vec::new(),
                warnings: Vec::new(),
            },
            functions: String::new(),
            pages: 2,
        }
    }

    /// Returns a guest whose functions come from `tests/guests/<file>.wat`, and which limits rows.
    pub(crate) fn from_file(file: &str) -> Self {
        let mut guest = Self::new(file);
        guest.functions = read(file);
        guest.decision.obligations = vec![Obligation::MaxRows(7)];
        guest
    }

    /// Returns the guest's component.
    pub(crate) fn component(&self) -> Vec<u8> {
        encode(&self.wat(), &world(""), "policy")
    }

    /// Returns an enforced policy of this guest.
    pub(crate) fn spec(&self) -> Spec {
        spec(&self.name, self.component())
    }

    pub(crate) fn wat(&self) -> String {
        let mut image = Image::default();
        let description = self.description(&mut image);
        let buckets = configured(&mut image, &self.configured);
        let (decision, obligations) = decision(&mut image, &self.decision);
        let mut functions = self.functions.clone();
        let defaults = [
            ("$describe", "(func $describe (result i32) (global.get $description))"),
            ("$configure", "(func $configure (param i32 i32) (result i32) (global.get $buckets))"),
            ("$evaluate", "(func $evaluate (param i32) (result i32) (global.get $decision))"),
        ];
        for (name, default) in defaults {
            if !functions.contains(&format!("(func {name}")) {
                functions.push_str(default);
            }
        }
        let heap = (BASE + image.bytes.len() as u32).next_multiple_of(16);
        let numbers = [
            ("PAGES", self.pages),
            ("HEAP", heap),
            ("DESCRIPTION", description),
            ("BUCKETS", buckets),
            ("DECISION", decision),
            ("OBLIGATIONS", obligations),
            ("BASE", BASE),
        ];
        let mut wat = read("frame");
        for (name, number) in numbers {
            wat = wat.replace(name, &number.to_string());
        }
        wat.replace("DATA", &image.escaped()).replace("GUEST", &functions)
    }

    fn description(&self, image: &mut Image) -> u32 {
        let phases: Vec<u8> = self
            .phases
            .iter()
            .map(|phase| match phase {
                Phase::Visible => 0,
                Phase::Before => 1,
                Phase::After => 2,
            })
            .collect();
        let fields = [
            image.text(&self.name),
            image.text("1.0.0"),
            image.texts(&self.covers),
            image.texts(&self.concerns),
            (image.put(1, &phases), phases.len() as u32),
            image.texts(&self.codes),
            image.text("{}"),
        ];
        image.put(4, &pairs(&fields))
    }
}

/// Returns an enforced policy.
pub(crate) fn spec(name: &str, component: Vec<u8>) -> Spec {
    Spec {
        name: name.to_owned(),
        component: Component::new(component),
        pin: None,
        mode: Mode::Enforce,
        settings: "{}".to_owned(),
        sections: Vec::new(),
        limits: Limits::default(),
        sees_text: false,
        of: None,
    }
}

/// Returns the text of the world, with `imports` put into it.
pub(crate) fn world(imports: &str) -> String {
    let text = std::fs::read_to_string(root().join("wit/policy.wit")).unwrap();
    text.replace("world policy {", &format!("world policy {{ {imports}"))
}

/// Makes a component of a core module in WAT, for a world.
pub(crate) fn encode(wat: &str, world: &str, name: &str) -> Vec<u8> {
    let mut module = wat::parse_str(wat).unwrap_or_else(|error| panic!("{error}\n{wat}"));
    let mut resolve = Resolve::default();
    resolve.push_str("clock.wit", "package wasi:clocks@0.2.0; interface wall-clock { now: func() -> u64; }").unwrap();
    let package = resolve.push_str("policy.wit", world).unwrap();
    let world = resolve.select_world(&[package], Some(name)).unwrap();
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
    ComponentEncoder::default().module(&module).unwrap().validate(true).encode().unwrap()
}

/// Returns the repository, whichever package in it this is compiled for.
fn root() -> &'static Path {
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    above.find(|dir| dir.join("wit/policy.wit").is_file()).unwrap()
}

fn read(file: &str) -> String {
    let path = root().join("tests/guests").join(format!("{file}.wat"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The guest's memory from [`BASE`] on.
#[derive(Default)]
pub(crate) struct Image {
    pub(crate) bytes: Vec<u8>,
}

impl Image {
    fn put(&mut self, align: usize, bytes: &[u8]) -> u32 {
        self.bytes.resize(self.bytes.len().next_multiple_of(align), 0);
        let at = BASE + self.bytes.len() as u32;
        self.bytes.extend_from_slice(bytes);
        at
    }

    fn text(&mut self, text: &str) -> (u32, u32) {
        (self.put(1, text.as_bytes()), text.len() as u32)
    }

    fn texts(&mut self, texts: &[String]) -> (u32, u32) {
        let pointers: Vec<_> = texts.iter().map(|text| self.text(text)).collect();
        (self.put(4, &pairs(&pointers)), texts.len() as u32)
    }

    fn escaped(&self) -> String {
        self.bytes.iter().fold(String::new(), |mut out, byte| {
            write!(out, "\\{byte:02x}").unwrap();
            out
        })
    }
}

fn pairs(pairs: &[(u32, u32)]) -> Vec<u8> {
    pairs.iter().flat_map(|(pointer, length)| [pointer.to_le_bytes(), length.to_le_bytes()].concat()).collect()
}

/// A record of so many bytes, filled in at offsets.
struct Record(Vec<u8>);

impl Record {
    fn new(size: usize) -> Self {
        Self(vec![0; size])
    }

    fn u8(mut self, at: usize, value: u8) -> Self {
        self.0[at] = value;
        self
    }

    fn u32(mut self, at: usize, value: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    fn u64(mut self, at: usize, value: u64) -> Self {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
        self
    }

    fn pair(self, at: usize, (pointer, length): (u32, u32)) -> Self {
        self.u32(at, pointer).u32(at + 4, length)
    }
}

fn configured(image: &mut Image, configured: &Result<Vec<Bucket>, Vec<Problem>>) -> u32 {
    let (discriminant, list) = match configured {
        Ok(buckets) => {
            let records: Vec<u8> = buckets
                .iter()
                .flat_map(|bucket| {
                    let record = Record::new(24).pair(0, image.text(&bucket.name)).u32(8, bucket.burst);
                    record.u32(12, bucket.per_interval).u64(16, bucket.interval_ms).0
                })
                .collect();
            (0, (image.put(8, &records), buckets.len() as u32))
        }
        Err(problems) => {
            let pointers: Vec<_> =
                problems.iter().flat_map(|p| [image.text(&p.path), image.text(&p.message)]).collect();
            (1, (image.put(4, &pairs(&pointers)), problems.len() as u32))
        }
    };
    image.put(4, &Record::new(12).u8(0, discriminant).pair(4, list).0)
}

/// Puts a decision into the image; returns where it is, and where its obligations are.
pub(crate) fn decision(image: &mut Image, decision: &PolicyDecision) -> (u32, u32) {
    let records: Vec<u8> = decision.obligations.iter().flat_map(|o| obligation(image, o)).collect();
    let obligations = (image.put(8, &records), decision.obligations.len() as u32);
    let charges: Vec<u8> = decision
        .charges
        .iter()
        .flat_map(|charge| Record::new(12).pair(0, image.text(&charge.bucket)).u32(8, charge.cost).0)
        .collect();
    let charges = (image.put(4, &charges), decision.charges.len() as u32);
    let warnings = image.texts(&decision.warnings);
    let mut record = Record::new(72).pair(48, obligations).pair(56, charges).pair(64, warnings);
    record = match &decision.verdict {
        Verdict::Pass => record.u8(0, 0),
        Verdict::Abstain => record.u8(0, 1),
        Verdict::Deny(denial) => {
            record = record.u8(0, 2).pair(8, image.text(&denial.code)).pair(16, image.text(&denial.message));
            record = record.pair(24, image.text(&denial.audit));
            match denial.retry_after_ms {
                None => record,
                Some(ms) => record.u8(32, 1).u64(40, ms),
            }
        }
    };
    (image.put(8, &record.0), obligations.0)
}

fn obligation(image: &mut Image, obligation: &Obligation) -> Vec<u8> {
    let record = Record::new(24);
    let quota = |record: Record, scope: &Scope, limit: u64| {
        let scope = match scope {
            Scope::Principal => 0,
            Scope::Group => 1,
        };
        record.u8(8, scope).u64(16, limit)
    };
    let record = match obligation {
        Obligation::ReadOnly => record.u8(0, 0),
        Obligation::MaxRows(value) => record.u8(0, 1).u64(8, *value),
        Obligation::MaxResultBytes(value) => record.u8(0, 2).u64(8, *value),
        Obligation::StatementTimeoutMs(value) => record.u8(0, 3).u64(8, *value),
        Obligation::MaxTtlMinutes(value) => record.u8(0, 4).u64(8, *value),
        Obligation::MaxLiveSandboxes { scope, limit } => quota(record.u8(0, 5), scope, *limit),
        Obligation::MaxDatabaseBytes { scope, limit } => quota(record.u8(0, 6), scope, *limit),
        Obligation::Mask { relation, column } => {
            record.u8(0, 7).pair(8, image.text(relation)).pair(16, image.text(column))
        }
        Obligation::RequireLabel(key) => record.u8(0, 8).pair(8, image.text(key)),
        Obligation::AddLabel { key, value } => record.u8(0, 9).pair(8, image.text(key)).pair(16, image.text(value)),
        Obligation::Consent(question) => record.u8(0, 10).pair(8, image.text(question)),
        Obligation::Approval(group) => record.u8(0, 11).pair(8, image.text(group)),
    };
    record.0
}
