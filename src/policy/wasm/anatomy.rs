//! What a component is made of, read from its bytes: nothing of it is compiled or run.

use wasmparser::{ComponentTypeRef, ConstExpr, Encoding, Operator, Parser, Payload, ValType};

use super::v0_1::TYPES;

/// What a policy of the world exports.
pub const WORLD_EXPORTS: [&str; 3] = ["describe", "configure", "evaluate"];
/// A page of memory, in bytes.
const PAGE_BYTES: u64 = 64 << 10;

/// The parts of a component.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Anatomy {
    /// What it imports, but for types and for the world's interface of them: there is no function in either.
    pub imports: Vec<String>,
    /// What it exports.
    pub exports: Vec<String>,
    /// The memories of its core modules.
    pub memories: Vec<Memory>,
    /// Where its first stack pointer starts, which is the stack's size where the stack lies first in memory, as Rust puts it.
    pub stack_bytes: Option<u64>,
}

/// A linear memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// At the start.
    pub min_bytes: u64,
    /// The most it asks for, if it says.
    pub max_bytes: Option<u64>,
}

/// Reads the parts of a component.
///
/// # Errors
/// Says at which byte the component cannot be read, or that it is none.
pub fn anatomy(bytes: &[u8]) -> Result<Anatomy, String> {
    let mut found = Anatomy::default();
    let mut depth: usize = 0;
    for payload in Parser::new(0).parse_all(bytes) {
        if let (0, Ok(Payload::Version { encoding: Encoding::Module, .. })) = (depth, &payload) {
            return Err("it is a core module and no component".to_owned());
        }
        note(&mut found, &mut depth, payload).map_err(|error| {
            format!("it is no component that can be read: {} at byte {}", error.message(), error.offset())
        })?;
    }
    Ok(found)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the parser's payloads are many, and a few are looked at")]
fn note(found: &mut Anatomy, depth: &mut usize, payload: wasmparser::Result<Payload<'_>>) -> wasmparser::Result<()> {
    match payload? {
        Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => *depth += 1,
        Payload::End(_) => *depth = depth.saturating_sub(1),
        Payload::ComponentImportSection(imports) if *depth == 0 => {
            for import in imports {
                let import = import?;
                let name = import.name.name;
                if name != TYPES && !matches!(import.ty, ComponentTypeRef::Type(_)) {
                    found.imports.push(name.to_owned());
                }
            }
        }
        Payload::ComponentExportSection(exports) if *depth == 0 => {
            for export in exports {
                found.exports.push(export?.name.name.to_owned());
            }
        }
        Payload::MemorySection(memories) => {
            for memory in memories {
                let memory = memory?;
                let bytes = |pages: u64| pages.saturating_mul(PAGE_BYTES);
                let max_bytes = memory.maximum.map(bytes);
                found.memories.push(Memory { min_bytes: bytes(memory.initial), max_bytes });
            }
        }
        Payload::GlobalSection(globals) if found.stack_bytes.is_none() => {
            for global in globals {
                let global = global?;
                if global.ty.mutable && global.ty.content_type == ValType::I32 {
                    found.stack_bytes = constant(&global.init_expr)?;
                    break;
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// Returns the number that a global starts with, if it is written out.
fn constant(start: &ConstExpr<'_>) -> wasmparser::Result<Option<u64>> {
    let first = start.get_operators_reader().read()?;
    let Operator::I32Const { value } = first else { return Ok(None) };
    Ok(u64::try_from(value).ok())
}
