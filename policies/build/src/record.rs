//! What is committed beside the components: `digests.txt` for people and checks, `bundled.rs` for the host.
//!
//! `digests.txt` is read by `sha256sum --check` as well. Its `sources` line is a digest over everything that the
//! components are made from, so that a component that was not rebuilt after a change is noticed without a compiler.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use sha2::{Digest as _, Sha256};

use crate::guest::{BY_DEFAULT, Built, POLICIES};

const DIGESTS: &str = "digests.txt";
const BUNDLED: &str = "bundled.rs";

/// The contents of `digests.txt`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The compiler that made the components.
    pub(crate) compiler: String,
    /// Digest of the sources.
    pub(crate) sources: String,
    /// Path from the policies' folder and digest, in order of path.
    pub(crate) components: Vec<(String, String)>,
}

/// Returns where a component lies in the policies' folder.
pub(crate) fn component_path(name: &str) -> String {
    format!("{name}/{name}.wasm")
}

/// Writes both files.
pub(crate) fn write(workspace: &Path, built: &Built) -> Result<()> {
    let record = Record::of(workspace, built)?;
    std::fs::write(workspace.join(DIGESTS), record.text())?;
    std::fs::write(workspace.join(BUNDLED), record.bundled())?;
    Ok(())
}

/// Reads `digests.txt`.
pub(crate) fn read(workspace: &Path) -> Result<Record> {
    let path = workspace.join(DIGESTS);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let line = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix("# ")?.strip_prefix(key)?.strip_prefix(": "))
            .map(str::to_owned)
            .with_context(|| format!("{DIGESTS} has no line `# {key}: …`"))
    };
    let components = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (digest, path) = line.split_once("  ").with_context(|| format!("{DIGESTS}: cannot read `{line}`"))?;
            Ok((path.to_owned(), digest.to_owned()))
        })
        .collect::<Result<_>>()?;
    Ok(Record { compiler: line("compiler")?, sources: line("sources")?, components })
}

/// Checks without a compiler that components, sources and `bundled.rs` are those of the record.
pub(crate) fn check_committed(workspace: &Path, record: &Record) -> Result<()> {
    let expected: Vec<_> = POLICIES.iter().map(|name| component_path(name)).collect();
    let recorded: Vec<_> = record.components.iter().map(|(path, _)| path.clone()).collect();
    ensure!(recorded == expected, "{DIGESTS} lists {recorded:?}, the policies are {expected:?}; run policies-build");
    for (path, digest) in &record.components {
        let bytes = std::fs::read(workspace.join(path)).with_context(|| format!("cannot read {path}"))?;
        ensure!(sha256(&bytes) == *digest, "{path} is not the component that {DIGESTS} records; run policies-build");
    }
    ensure!(
        sources(workspace)? == record.sources,
        "the sources have changed since the components were built; run policies-build (`.ci/policies build`)"
    );
    let bundled = std::fs::read_to_string(workspace.join(BUNDLED)).with_context(|| format!("cannot read {BUNDLED}"))?;
    ensure!(bundled == record.bundled(), "{BUNDLED} is not what {DIGESTS} gives; run policies-build");
    Ok(())
}

impl Record {
    /// Records a build.
    pub(crate) fn of(workspace: &Path, built: &Built) -> Result<Self> {
        Ok(Self {
            compiler: built.compiler.clone(),
            sources: sources(workspace)?,
            components: built
                .policies
                .iter()
                .map(|policy| (component_path(&policy.name), sha256(&policy.component)))
                .collect(),
        })
    }

    /// Returns the components whose digests are not the other record's.
    pub(crate) fn differing(&self, other: &Self) -> Vec<&str> {
        self.components.iter().filter(|line| !other.components.contains(line)).map(|(path, _)| path.as_str()).collect()
    }

    fn text(&self) -> String {
        let mut text = format!(
            "# Digests of the bundled policies, written by policies-build.\n# compiler: {}\n# sources: {}\n",
            self.compiler, self.sources
        );
        for (path, digest) in &self.components {
            writeln!(text, "{digest}  {path}").unwrap_or_default();
        }
        text
    }

    fn bundled(&self) -> String {
        let mut text = String::from(HEAD);
        for (path, digest) in &self.components {
            let name = path.split('/').next().unwrap_or_default();
            let by_default = BY_DEFAULT.contains(&name);
            write!(
                text,
                "    Bundled {{\n        name: \"{name}\",\n        component: include_bytes!(\"{path}\"),\n        \
                 sha256: \"{digest}\",\n        default_settings: include_str!(\"{name}/default.json\"),\n        \
                 by_default: {by_default},\n    }},\n"
            )
            .unwrap_or_default();
        }
        text.push_str("]\n");
        text
    }
}

/// An expression, so that the host says what a `Bundled` is: `const BUNDLED: &[Bundled] = include!("…/bundled.rs");`.
const HEAD: &str = "\
// The bundled policies, sorted by name: an expression to be included where a struct `Bundled` is in scope.
// Written by policies-build, not by hand.
&[
";

/// Returns a digest in lower-case hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap_or_default();
        text
    })
}

/// Digests everything that gets into a component: names and contents, in order of name.
fn sources(workspace: &Path) -> Result<String> {
    let mut files = vec![PathBuf::from("Cargo.toml"), PathBuf::from("Cargo.lock")];
    for folder in POLICIES.iter().copied().chain(["sdk"]) {
        files.push(Path::new(folder).join("Cargo.toml"));
        for entry in std::fs::read_dir(workspace.join(folder).join("src"))? {
            files.push(Path::new(folder).join("src").join(entry?.file_name()));
        }
        if folder != "sdk" {
            files.push(Path::new(folder).join("settings.schema.json"));
        }
    }
    files.sort();
    let mut all = Sha256::new();
    for file in files {
        let Some(name) = file.to_str() else { bail!("{} is not text", file.display()) };
        let bytes = std::fs::read(workspace.join(&file)).with_context(|| format!("cannot read {name}"))?;
        all.update(format!("{name} {}\n", sha256(&bytes)));
    }
    Ok(all.finalize().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap_or_default();
        text
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_committed_is_what_was_recorded() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let record = read(workspace).unwrap();
        check_committed(workspace, &record).unwrap();
    }

    #[test]
    fn a_digest_is_that_of_the_standard() {
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
