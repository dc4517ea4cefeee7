//! Compiles the policies for WebAssembly and encodes them as components.
//!
//! Flags that hold a path are given to rustc behind cargo's back, by this program standing in as cargo's rustc wrapper:
//! cargo hashes the flags it knows of into symbols, and symbols order the code.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail, ensure};

/// The bundled policies, by folder, sorted.
pub(crate) const POLICIES: [&str; 13] = [
    "clone-source",
    "destructive-guard",
    "extensions",
    "host-command",
    "maintenance-window",
    "ownership",
    "quota",
    "rate-limit",
    "readonly",
    "required-labels",
    "row-limit",
    "rules",
    "statement-guard",
];

/// Those that apply where there is no policy file. The others do nothing until an operator says what, and cost nothing
/// before.
pub(crate) const BY_DEFAULT: [&str; 9] = [
    "clone-source",
    "extensions",
    "host-command",
    "ownership",
    "quota",
    "rate-limit",
    "readonly",
    "row-limit",
    "statement-guard",
];

const TARGET: &str = "wasm32-unknown-unknown";
/// Each page is cleared after each evaluation. Rust's own 1 MiB more than doubles the cost of a fresh instance; a policy needs
/// little, and with this much its data fits into the same page of 64 KiB.
const STACK_BYTES: usize = 32 << 10;
/// Larger components are a mistake: a policy decides, it does not carry a library. The largest reads many kinds of settings.
const COMPONENT_BYTES_MAX: usize = 384 << 10;
/// Set for the children that stand in for rustc; holds the folder of the policies.
const WRAPPING: &str = "PGSANDBOX_POLICIES_RUSTC";

/// What a build gave.
pub(crate) struct Built {
    /// The compiler's first line about itself.
    pub(crate) compiler: String,
    /// In the order of [`POLICIES`].
    pub(crate) policies: Vec<BuiltPolicy>,
}

/// One policy as a component.
pub(crate) struct BuiltPolicy {
    pub(crate) name: String,
    pub(crate) component: Vec<u8>,
}

/// Builds every policy.
pub(crate) fn build_all(workspace: &Path) -> Result<Built> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let compiler = compiler(&rustc)?;
    let target_dir = workspace.join("target/guests");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(workspace)
        .args(["build", "--release", "--locked", "--lib", "--target", TARGET, "--target-dir"])
        .arg(&target_dir)
        .args(POLICIES.iter().flat_map(|name| ["--package".to_owned(), format!("policy-{name}")]))
        .env("RUSTC", &rustc)
        .env("RUSTC_WRAPPER", std::env::current_exe().context("cannot find this program itself")?)
        .env(WRAPPING, workspace)
        .env("CARGO_ENCODED_RUSTFLAGS", format!("-Clink-arg=-zstack-size={STACK_BYTES}"))
        .env_remove("RUSTFLAGS");
    ensure!(
        cargo.status().context("cannot start cargo")?.success(),
        "cargo could not build the policies; does {} know {TARGET}? (`.ci/policies` provides one that does)",
        rustc.display()
    );
    let policies = POLICIES
        .iter()
        .map(|name| {
            let module =
                target_dir.join(TARGET).join("release").join(format!("policy_{}.wasm", name.replace('-', "_")));
            let component = encode(&module).with_context(|| format!("policy `{name}`"))?;
            Ok(BuiltPolicy { name: (*name).to_owned(), component })
        })
        .collect::<Result<_>>()?;
    Ok(Built { compiler, policies })
}

fn compiler(rustc: &OsString) -> Result<String> {
    let output = Command::new(rustc).arg("-vV").output().context("cannot start rustc")?;
    let text = String::from_utf8(output.stdout).context("rustc's version is not text")?;
    text.lines().next().map(str::to_owned).context("rustc does not say its version")
}

/// Makes a component of a module, and checks that it needs nothing of its host.
fn encode(module: &Path) -> Result<Vec<u8>> {
    let bytes = std::fs::read(module).with_context(|| format!("cannot read {}", module.display()))?;
    let component = wit_component::ComponentEncoder::default().validate(true).module(&bytes)?.encode()?;
    ensure!(component.len() <= COMPONENT_BYTES_MAX, "{} bytes are over {COMPONENT_BYTES_MAX}", component.len());
    check_imports(&component)?;
    Ok(component)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the other sections of a component are no concern of this")]
/// A policy is a pure function: neither the component nor the module inside imports anything but types.
fn check_imports(component: &[u8]) -> Result<()> {
    use wasmparser::{ComponentTypeRef, Parser, Payload};
    for payload in Parser::new(0).parse_all(component) {
        match payload? {
            Payload::ImportSection(section) if section.count() > 0 => bail!("the module inside has imports"),
            Payload::ComponentImportSection(section) => {
                for import in section {
                    let import = import?;
                    // The world's types come as an imported interface of types, which asks for nothing.
                    if !matches!(import.ty, ComponentTypeRef::Instance(_) | ComponentTypeRef::Type(_)) {
                        bail!("the component imports `{}`", import.name.name);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Runs rustc in cargo's stead, if that is what this process was started for.
pub(crate) fn act_as_rustc() -> Option<ExitCode> {
    let workspace = PathBuf::from(std::env::var_os(WRAPPING)?);
    let mut arguments = std::env::args_os().skip(1);
    let rustc = arguments.next()?;
    let status = Command::new(rustc)
        .args(arguments)
        .arg(remap(&workspace, "/policies"))
        .args(cargo_home().map(|home| remap(&home, "/cargo")))
        .status();
    // Signals and failures to start alike: cargo stops.
    let code = status.ok().and_then(|status| status.code()).and_then(|code| u8::try_from(code).ok());
    Some(ExitCode::from(code.unwrap_or(u8::MAX)))
}

/// Panic messages name files; they must not name this machine's.
fn remap(from: &Path, to: &str) -> OsString {
    let mut flag = OsString::from("--remap-path-prefix=");
    flag.push(from);
    flag.push("=");
    flag.push(to);
    flag
}

fn cargo_home() -> Option<PathBuf> {
    std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| Some(std::env::home_dir()?.join(".cargo")))
}
