//! Builds the bundled policies into components, records their digests, and checks what is committed.
//!
//! Same source and same compiler give the same bytes, wherever the folder is: no path gets into a component. Nothing
//! is downloaded but crates, by cargo. The compiler needs the target `wasm32-unknown-unknown`: `.ci/wasm-toolchain.sh`
//! makes one from Debian's packages, and `.ci/policies` calls this with it.

#[cfg(feature = "bindings")]
mod bindings;
mod guest;
mod record;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};

const USAGE: &str = "\
usage: policies-build            build every policy; write components, digests.txt and bundled.rs
       policies-build --check    build every policy and compare with what is committed
       policies-build bindings   generate sdk/src/bindings.rs from wit/policy.wit (feature `bindings`)";

fn main() -> ExitCode {
    if let Some(code) = guest::act_as_rustc() {
        return code;
    }
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let workspace = workspace()?;
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => build(&workspace),
        ["--check"] => check(&workspace),
        #[cfg(feature = "bindings")]
        ["bindings"] => bindings::generate(&workspace),
        _ => bail!("{USAGE}"),
    }
}

fn build(workspace: &Path) -> Result<()> {
    let built = guest::build_all(workspace)?;
    for policy in &built.policies {
        let path = workspace.join(record::component_path(&policy.name));
        std::fs::write(&path, &policy.component).with_context(|| format!("cannot write {}", path.display()))?;
        say(&format!("{:>8} bytes  {}", policy.component.len(), path.display()));
    }
    record::write(workspace, &built)
}

fn check(workspace: &Path) -> Result<()> {
    let recorded = record::read(workspace)?;
    record::check_committed(workspace, &recorded)?;
    let built = guest::build_all(workspace)?;
    if built.compiler != recorded.compiler {
        say(&format!(
            "warning: built with `{}`, recorded with `{}`: the bytes are not compared",
            built.compiler, recorded.compiler
        ));
        return Ok(());
    }
    let fresh = record::Record::of(workspace, &built)?;
    let differing: Vec<_> = fresh.differing(&recorded);
    if !differing.is_empty() {
        bail!("built from source, these differ from what is committed: {}; run policies-build", differing.join(", "));
    }
    say(&format!("{} components are what their source gives", built.policies.len()));
    Ok(())
}

/// The folder of the policies: the one this tool was built in, unless it has moved.
fn workspace() -> Result<PathBuf> {
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the tool lies in no folder")?;
    if built_in.join("sdk").is_dir() {
        return Ok(built_in.to_owned());
    }
    let here = std::env::current_dir()?;
    here.ancestors()
        .flat_map(|folder| [folder.to_owned(), folder.join("policies")])
        .find(|folder| folder.join("sdk/src/bindings.rs").is_file())
        .context("run this in the folder `policies`")
}

#[expect(clippy::print_stderr, reason = "a command-line tool's messages")]
fn say(message: &str) {
    eprintln!("{message}");
}
