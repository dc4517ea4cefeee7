//! Generates the SDK's bindings from the policy world.

use std::path::Path;

use anyhow::{Context as _, Result};
use wit_bindgen_core::{Files, WorldGenerator as _, wit_parser::Resolve};

use crate::{record::sha256, say};

/// Writes `sdk/src/bindings.rs`.
pub(crate) fn generate(workspace: &Path) -> Result<()> {
    let wit = workspace.parent().context("the policies lie in no folder")?.join("wit/policy.wit");
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(&wit)?;
    let world = resolve.select_world(&[package], Some("policy"))?;
    let options = wit_bindgen_rust::Opts {
        format: true,
        runtime_path: Some("::wit_bindgen::rt".into()),
        pub_export_macro: true,
        export_macro_name: Some("export_world".into()),
        default_bindings_module: Some("$crate::bindings".into()),
        additional_derive_attributes: vec!["PartialEq".into()],
        ..Default::default()
    };
    let mut files = Files::default();
    options.build().generate(&mut resolve, world, &mut files)?;
    let (_, code) = files.iter().next().context("the generator wrote no file")?;
    let path = workspace.join("sdk/src/bindings.rs");
    let mut text = format!("// From wit/policy.wit of sha256 {}.\n", sha256(&std::fs::read(&wit)?));
    text.push_str(std::str::from_utf8(code)?);
    std::fs::write(&path, text)?;
    say(&format!("wrote {}", path.display()));
    Ok(())
}
