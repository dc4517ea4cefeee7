//! What a command is told of its surroundings: a small environment, made anew, and nothing of this program's own.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::CommandError;

/// The most names that the database URL can be given beside its own.
pub const URL_NAMES_MAX: usize = 8;
/// The longest of them, in bytes.
pub const URL_NAME_BYTES_MAX: usize = 64;
/// The longest value that is passed on, in bytes.
const VALUE_BYTES_MAX: usize = 32 << 10;

/// Passed on as they are.
pub const PASSED: [&str; 14] = [
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_COLLATE",
    "LC_CTYPE",
    "LC_MESSAGES",
    "LC_MONETARY",
    "LC_NUMERIC",
    "LC_TIME",
    "LOGNAME",
    "TERM",
    "TZ",
    "USER",
    "COLORTERM",
];

/// A directory of a package manager or a tool.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The variable that names it, passed on where it is set; empty for none.
    pub variable: &'static str,
    /// Where it is below the home directory otherwise; empty for nowhere.
    pub home: &'static str,
    /// What of it may be written: paths below it, `.` for all of it.
    pub writable: &'static [&'static str],
    /// What of it may be read and executed.
    pub readable: &'static [&'static str],
}

const fn cache(variable: &'static str, home: &'static str) -> Place {
    Place { variable, home, writable: &["."], readable: &[] }
}

const fn tools(variable: &'static str, home: &'static str) -> Place {
    Place { variable, home, writable: &[], readable: &["."] }
}

/// The directories of package managers and tools. Their files of settings and credentials are not among them.
pub const PLACES: &[Place] = &[
    cache("npm_config_cache", ".npm"),
    cache("YARN_CACHE_FOLDER", ".cache/yarn"),
    cache("", ".yarn/berry"),
    cache("", ".cache/pnpm"),
    cache("", ".local/share/pnpm/store"),
    cache("", ".bun/install/cache"),
    cache("", ".cache/node"),
    cache("", ".cache/node-gyp"),
    cache("", ".cache/prisma"),
    cache("DENO_DIR", ".cache/deno"),
    cache("PIP_CACHE_DIR", ".cache/pip"),
    cache("UV_CACHE_DIR", ".cache/uv"),
    cache("POETRY_CACHE_DIR", ".cache/pypoetry"),
    cache("GOCACHE", ".cache/go-build"),
    cache("GOMODCACHE", "go/pkg/mod"),
    cache("COMPOSER_CACHE_DIR", ".cache/composer"),
    cache("NUGET_PACKAGES", ".nuget/packages"),
    cache("", ".m2/repository"),
    Place {
        variable: "GRADLE_USER_HOME",
        home: ".gradle",
        writable: &["caches", "daemon", "native", "wrapper", "notifications"],
        readable: &[],
    },
    Place {
        variable: "CARGO_HOME",
        home: ".cargo",
        writable: &["registry", "git", ".package-cache", ".package-cache-mutate", ".global-cache"],
        readable: &["bin", "config", "config.toml", "env"],
    },
    Place { variable: "GOPATH", home: "go", writable: &["pkg"], readable: &["bin"] },
    Place {
        variable: "GEM_HOME",
        home: ".gem",
        writable: &[],
        readable: &["ruby", "gems", "bin", "specifications", "extensions"],
    },
    tools("RUSTUP_HOME", ".rustup"),
    tools("NVM_DIR", ".nvm"),
    tools("PYENV_ROOT", ".pyenv"),
    tools("RBENV_ROOT", ".rbenv"),
    tools("ASDF_DATA_DIR", ".asdf"),
    tools("VOLTA_HOME", ".volta"),
    tools("PNPM_HOME", ""),
    tools("JAVA_HOME", ""),
    tools("GOROOT", ""),
    tools("PLAYWRIGHT_BROWSERS_PATH", ".cache/ms-playwright"),
    tools("", ".rvm"),
    tools("", ".sdkman"),
    tools("", ".dotnet"),
    tools("", ".bun/bin"),
    tools("", ".deno/bin"),
    tools("", ".local/bin"),
    tools("", ".local/lib"),
    tools("", ".local/pipx"),
    tools("", ".local/share/pipx"),
    tools("", ".local/share/pnpm"),
    tools("", ".local/share/uv"),
    tools("", ".local/share/mise"),
    tools("", ".local/share/fnm"),
    tools("", ".local/share/virtualenvs"),
    tools("", ".virtualenvs"),
    tools("", ".composer/vendor"),
    tools("", ".config/composer/vendor"),
    tools("", ".nix-profile"),
];

/// Names with which programs are told what to load, where to look and whom to trust, by what they begin with.
const TAKEN_PREFIXES: [&str; 26] = [
    "LD_", "DYLD_", "PG", "LC_", "GIT_", "NODE_", "NPM_", "PYTHON", "RUBY", "PERL", "JAVA_", "JDK_", "BASH", "ZDOT",
    "DOCKER_", "COMPOSE_", "SSH_", "CARGO_", "RUST", "GLIBC_", "MALLOC_", "XDG_", "SSL_", "CURL_", "HTTP", "MAKE",
];
/// And whole names.
const TAKEN: [&str; 22] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TMP",
    "TEMP",
    "PWD",
    "OLDPWD",
    "IFS",
    "ENV",
    "CDPATH",
    "LANG",
    "LANGUAGE",
    "TZ",
    "EDITOR",
    "PAGER",
    "BROWSER",
    "NO_PROXY",
    "ALL_PROXY",
];

/// Checks a further name for the database URL.
///
/// # Errors
/// `invalid_arguments` if it is malformed, or a name that programs read for something else.
pub fn check_url_name(name: &str) -> Result<(), CommandError> {
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let letters = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let upper = name.to_ascii_uppercase();
    let own = matches!(upper.as_str(), "PGSANDBOX_DATABASE_URL" | "DATABASE_URL");
    let taken = TAKEN.contains(&upper.as_str())
        || TAKEN_PREFIXES.iter().any(|prefix| upper.starts_with(prefix))
        || upper.ends_with("_PROXY")
        || PLACES.iter().any(|place| place.variable.eq_ignore_ascii_case(name));
    if begins && letters && name.len() <= URL_NAME_BYTES_MAX && (own || !taken) {
        return Ok(());
    }
    let name = name.chars().filter(|c| !c.is_control()).take(URL_NAME_BYTES_MAX).collect();
    Err(CommandError::VariableName { name })
}

/// What this process was told, as far as commands may know.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// The home directory.
    pub home: Option<PathBuf>,
    /// Where programs are looked for, in order.
    pub path: Vec<PathBuf>,
    /// Variables that are passed on.
    pub variables: BTreeMap<String, String>,
}

impl Surroundings {
    /// Takes what commands may know of `all`, `further` names among it.
    pub fn of(all: impl IntoIterator<Item = (std::ffi::OsString, std::ffi::OsString)>, further: &[String]) -> Self {
        let mut all: BTreeMap<String, String> = all
            .into_iter()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let home = all.remove("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        let path = std::env::split_paths(&all.remove("PATH").unwrap_or_default()).filter(|dir| is_sound(dir)).collect();
        let named = |name: &str| {
            PASSED.contains(&name)
                || further.iter().any(|f| f == name)
                || PLACES.iter().any(|p| !p.variable.is_empty() && p.variable == name)
        };
        let passed =
            |name: &String, value: &mut String| named(name) && value.len() <= VALUE_BYTES_MAX && !value.contains('\0');
        all.retain(passed);
        Self { home, path, variables: all }
    }

    /// Returns that of this process.
    pub fn of_process(further: &[String]) -> Self {
        Self::of(std::env::vars_os(), further)
    }
}

/// Returns whether a directory of the path can be trusted to hold what its owner put there: it is absolute, is there, and
/// not everybody may write to it.
fn is_sound(dir: &Path) -> bool {
    let Ok(meta) = std::fs::metadata(dir) else { return false };
    dir.is_absolute() && dir.to_str().is_some() && meta.is_dir() && meta.permissions().mode() & 0o002 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_listed_is_passed_on() {
        let all = [
            ("HOME", "/home/ann"),
            ("PATH", "/usr/bin:.::node_modules/.bin:/tmp:/no/such/place"),
            ("LANG", "C.UTF-8"),
            ("PIP_CACHE_DIR", "/var/cache/pip"),
            ("PGPASSWORD", "x"),
            ("PGSANDBOX_ADMIN_DATABASE_URL", "x"),
            ("AWS_SECRET_ACCESS_KEY", "x"),
            ("LD_PRELOAD", "x"),
            ("NODE_OPTIONS", "x"),
            ("APP_MODE", "test"),
        ];
        let all = all.map(|(name, value)| (name.into(), value.into()));
        let told = Surroundings::of(all, &["APP_MODE".to_owned()]);
        assert_eq!(told.home, Some(PathBuf::from("/home/ann")));
        assert_eq!(told.path, [PathBuf::from("/usr/bin")], "relative, missing and world-writable ones are left out");
        assert_eq!(told.variables.keys().collect::<Vec<_>>(), ["APP_MODE", "LANG", "PIP_CACHE_DIR"]);
    }

    #[test]
    fn a_value_that_is_too_long_is_not_passed_on() {
        let told = |length: usize| Surroundings::of([("TERM".into(), "x".repeat(length).into())], &[]).variables.len();
        assert_eq!((told(VALUE_BYTES_MAX), told(VALUE_BYTES_MAX + 1)), (1, 0));
    }

    #[test]
    fn names_for_the_url_are_names_that_nothing_else_is_read_from() {
        for name in [
            "APP_DATABASE_URL",
            "SANDBOX_DATABASE_URL",
            "SQLALCHEMY_DATABASE_URI",
            "ConnectionStrings__Default",
            "DATABASE_URL",
            "_X",
        ] {
            assert!(check_url_name(name).is_ok(), "{name}");
        }
        let long = "X".repeat(URL_NAME_BYTES_MAX + 1);
        for name in [
            "",
            "1X",
            "A B",
            "A=B",
            "PATH",
            "path",
            "LD_PRELOAD",
            "PGPASSWORD",
            "NODE_OPTIONS",
            "https_proxy",
            "GIT_SSH",
            "BASH_ENV",
            "CARGO_HOME",
            "npm_config_cache",
            &long,
        ] {
            assert!(check_url_name(name).is_err(), "{name}");
        }
        assert!(check_url_name(&long[1..]).is_ok());
    }
}
