//! The one list of operations. Tools, commands, schemas, pages and the impact table come from it.

use std::sync::OnceLock;

use async_trait::async_trait;
use serde_json::Value;

use super::arguments;
use super::envelope::{Done, envelope_schema};
use super::schema::{JsonObject, object_schema};
use super::{Ahead, Asks, Call, Operation, Spec};
use crate::admission::{Admitted, AppliedLimit, Gate, Permit, Receipt};
use crate::command::Commands;
use crate::model::{Code, Failure, Preview};
use crate::sandbox::Core;
use crate::sql::Script;

type ReadArguments = fn(&Entry, JsonObject) -> Result<Box<dyn Prepared>, Failure>;

/// Where an operation is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// As a tool, and as a command.
    Tool,
    /// As what a method of MCP asks for, and nowhere else.
    Method(&'static str),
}

/// The methods by which tools are called: MCP's own, and the command line.
const TOOL_METHODS: [&str; 2] = ["tools/call", "cli"];

/// An operation without its types.
pub struct Entry {
    /// What is fixed about it.
    pub spec: &'static Spec,
    /// Where it is offered.
    pub offered: Offered,
    input: OnceLock<JsonObject>,
    output: OnceLock<JsonObject>,
    make_input: fn() -> JsonObject,
    make_output: fn() -> JsonObject,
    read: ReadArguments,
}

/// A call whose arguments were read.
#[async_trait]
pub trait Prepared: Send + Sync {
    /// Returns which facts the policies need to see.
    fn asks(&self) -> Asks;

    /// Takes the call through the gate.
    ///
    /// # Errors
    /// Fails as the decision says, or because a demand cannot be met.
    fn admit(self: Box<Self>, gate: &Gate<'_>) -> Result<Passed, Failure>;

    /// Returns what would be refused of the call while the rest is done. Nothing is charged or done.
    ///
    /// # Errors
    /// Fails with what the call would fail with before its first act.
    async fn foresee(self: Box<Self>, gate: &Gate<'_>, beside: &Beside<'_>) -> Result<Vec<String>, Failure>;
}

/// What a call is looked at with that is not to be run: all that its permit does not say.
#[derive(Clone, Copy)]
pub struct Beside<'a> {
    /// The lifecycle core.
    pub core: &'a Core,
    /// Its SQL, as it was read for the decision.
    pub script: Option<&'a Script>,
    /// Runs commands of repositories; nothing is run with it.
    pub commands: &'a Commands,
    /// Decides without running.
    pub preview: &'a dyn Preview,
}

/// A call that went through the gate.
pub struct Passed {
    /// The call, with its permit.
    pub ready: Box<dyn Ready>,
    /// For the caller.
    pub warnings: Vec<String>,
    /// The limits that policies set.
    pub limits: Vec<AppliedLimit>,
    /// What was charged.
    pub receipt: Receipt,
}

/// A call with its permit.
#[async_trait]
pub trait Ready: Send {
    /// Does what was permitted.
    ///
    /// # Errors
    /// Fails with the codes of the contract.
    async fn run(self: Box<Self>, call: &Call) -> Result<Done<Value>, Failure>;
}

/// Every operation, in the order of the reference page.
pub static OPERATIONS: [Entry; 44] = [
    Entry::of::<super::create_database::CreateDatabase>(),
    Entry::of::<super::clone_database::CloneDatabase>(),
    Entry::of::<super::list_databases::ListDatabases>(),
    Entry::of::<super::get_connection_string::GetConnectionString>(),
    Entry::of::<super::run_sql::RunSql>(),
    Entry::of::<super::extend_database::ExtendDatabase>(),
    Entry::of::<super::delete_database::DeleteDatabase>(),
    Entry::of::<super::cleanup_expired::CleanupExpired>(),
    Entry::of::<super::fork_database::ForkDatabase>(),
    Entry::of::<super::reset_database::ResetDatabase>(),
    Entry::of::<super::create_template_from_sandbox::CreateTemplateFromSandbox>(),
    Entry::of::<super::create_sandbox_from_template::CreateSandboxFromTemplate>(),
    Entry::of::<super::list_templates::ListTemplates>(),
    Entry::of::<super::delete_template::DeleteTemplate>(),
    Entry::of::<super::export_template::ExportTemplate>(),
    Entry::of::<super::import_template::ImportTemplate>(),
    Entry::of::<super::list_profiles::ListProfiles>(),
    Entry::of::<super::list_extensions::ListExtensions>(),
    Entry::of::<super::verify_sandbox::VerifySandbox>(),
    Entry::of::<super::explain_query::ExplainQuery>(),
    Entry::of::<super::describe_schema::DescribeSchema>(),
    Entry::of::<super::schema_digest::DigestSchema>(),
    Entry::of::<super::schema_diff::DiffSchema>(),
    Entry::of::<super::create_schema_snapshot::CreateSchemaSnapshot>(),
    Entry::of::<super::list_schema_snapshots::ListSchemaSnapshots>(),
    Entry::of::<super::diff_schema_snapshot::DiffSchemaSnapshot>(),
    Entry::of::<super::delete_schema_snapshot::DeleteSchemaSnapshot>(),
    Entry::of::<super::prepare_for_repo::PrepareForRepo>(),
    Entry::of::<super::run_repo_command::RunRepoCommand>(),
    Entry::of::<super::seed_database::SeedDatabase>(),
    Entry::of::<super::validate_schema_change::ValidateSchemaChange>(),
    Entry::of::<super::explain_policy::ExplainPolicy>(),
    Entry::of::<super::ensure_postgres::EnsurePostgres>(),
    Entry::of::<super::list_approvals::ListApprovals>(),
    Entry::of::<super::approve::Approve>(),
    Entry::of::<super::doctor::Doctor>(),
    Entry::of_method::<super::list_prompts::ListPrompts>("prompts/list"),
    Entry::of_method::<super::get_prompt::GetPrompt>("prompts/get"),
    Entry::of_method::<super::list_resources::ListResources>("resources/list"),
    Entry::of_method::<super::list_resource_templates::ListResourceTemplates>("resources/templates/list"),
    Entry::of_method::<super::read_resource::ReadResource>("resources/read"),
    Entry::of_method::<super::complete::Complete>("completion/complete"),
    Entry::of_method::<super::get_task::GetTask>("tasks/get"),
    Entry::of_method::<super::cancel_task::CancelTask>("tasks/cancel"),
];

/// Returns the operation that a method asks for by that name.
///
/// # Errors
/// `unknown_operation`, also for one that the method does not offer.
pub fn find_for(name: &str, method: &str) -> Result<&'static Entry, Failure> {
    find(name).and_then(|entry| if entry.is_offered_by(method) { Ok(entry) } else { Err(unknown(name)) })
}

/// Returns the operation of that name.
///
/// # Errors
/// `unknown_operation`, with the nearest known name.
pub fn find(name: &str) -> Result<&'static Entry, Failure> {
    if let Some(entry) = OPERATIONS.iter().find(|entry| entry.spec.name == name) {
        return Ok(entry);
    }
    Err(unknown(name))
}

fn unknown(name: &str) -> Failure {
    let known = || OPERATIONS.iter().filter(|entry| entry.is_tool()).map(|entry| entry.spec.name);
    let shown: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
    let failure = Failure::new(Code::UnknownOperation, format!("there is no operation `{shown}`")).allowed(known());
    match arguments::nearest(name, known()) {
        Some(nearest) => failure.hint(format!("the nearest known one is `{nearest}`")),
        None => failure,
    }
}

impl Entry {
    const fn of<T: Operation>() -> Self {
        Self::offered::<T>(Offered::Tool)
    }

    const fn of_method<T: Operation>(method: &'static str) -> Self {
        Self::offered::<T>(Offered::Method(method))
    }

    const fn offered<T: Operation>(offered: Offered) -> Self {
        Self {
            spec: &T::SPEC,
            offered,
            input: OnceLock::new(),
            output: OnceLock::new(),
            make_input: object_schema::<T>,
            make_output: envelope_schema::<T::Output>,
            read: |entry, arguments| {
                let input = arguments::read::<T>(T::SPEC.name, entry.input_schema(), arguments)?;
                input.check()?;
                Ok(Box::new(Request(input)))
            },
        }
    }

    /// Returns whether it is a tool and a command.
    pub fn is_tool(&self) -> bool {
        self.offered == Offered::Tool
    }

    fn is_offered_by(&self, method: &str) -> bool {
        match self.offered {
            Offered::Tool => TOOL_METHODS.contains(&method),
            Offered::Method(of) => of == method,
        }
    }

    /// Returns the schema of the arguments.
    pub fn input_schema(&self) -> &JsonObject {
        self.input.get_or_init(|| {
            let mut schema = (self.make_input)();
            schema.insert("additionalProperties".into(), Value::Bool(false));
            schema
        })
    }

    /// Returns the schema of the envelope around the result.
    pub fn output_schema(&self) -> &JsonObject {
        self.output.get_or_init(self.make_output)
    }

    /// Reads arguments.
    ///
    /// # Errors
    /// `invalid_arguments`, with every fault named.
    pub fn read(&self, arguments: JsonObject) -> Result<Box<dyn Prepared>, Failure> {
        (self.read)(self, arguments)
    }
}

struct Request<T>(T);

#[async_trait]
impl<T: Operation> Prepared for Request<T> {
    fn asks(&self) -> Asks {
        self.0.asks()
    }

    fn admit(self: Box<Self>, gate: &Gate<'_>) -> Result<Passed, Failure> {
        let Admitted { permit, warnings, limits, receipt } = gate.admit(self.0)?;
        Ok(Passed { ready: Box::new(Permitted(permit)), warnings, limits, receipt })
    }

    async fn foresee(self: Box<Self>, gate: &Gate<'_>, beside: &Beside<'_>) -> Result<Vec<String>, Failure> {
        let (input, grant) = gate.foresee(self.0)?;
        let Beside { core, script, commands, preview } = *beside;
        input.foresee(&Ahead { core, grant: &grant, script, commands, preview }).await
    }
}

struct Permitted<T>(Permit<T>);

#[async_trait]
impl<T: Operation> Ready for Permitted<T> {
    async fn run(self: Box<Self>, call: &Call) -> Result<Done<Value>, Failure> {
        let Done { summary, warnings, result } = T::run(self.0, call).await?;
        let result = serde_json::to_value(result)
            .map_err(|error| Failure::new(Code::Internal, "the result cannot be written").audit(error.to_string()))?;
        Ok(Done { summary, warnings, result })
    }
}
