//! Names of directories that mean something to more than one part.

use std::path::Path;

/// Where projects keep programs of their own, which is put on `PATH` while somebody works on them.
const PROJECT_PROGRAMS: [&str; 6] =
    [".venv/bin", "venv/bin", "env/bin", "node_modules/.bin", "vendor/bin", ".devenv/profile/bin"];

/// Returns whether a directory of `PATH` is a project's own, by its name. What is in there is the project's, and no program
/// of this machine: this program runs nothing from there.
pub fn is_project_programs(dir: &Path) -> bool {
    PROJECT_PROGRAMS.iter().any(|end| dir.ends_with(end))
}
