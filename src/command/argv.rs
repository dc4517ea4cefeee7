//! A command as its caller gives it: a program and its arguments, and never a shell's text.
//!
//! What is refused here is refused whatever a policy says: a shell or a launcher as the program would make any pattern of a
//! policy mean any command.

use super::CommandError;

/// The most words of a command.
pub const WORDS_MAX: usize = 64;
/// The most bytes of all words of a command together.
pub const ARGV_BYTES_MAX: usize = 16 << 10;

/// Programs that run what stands in their arguments, by their file names in lower case.
const LAUNCHERS: [&str; 44] = [
    "ash",
    "bash",
    "busybox",
    "chroot",
    "cmd",
    "csh",
    "dash",
    "doas",
    "env",
    "eval",
    "exec",
    "firejail",
    "fish",
    "flatpak-spawn",
    "ionice",
    "ksh",
    "mksh",
    "nice",
    "nohup",
    "nsenter",
    "nu",
    "parallel",
    "pkexec",
    "powershell",
    "pwsh",
    "rbash",
    "runuser",
    "script",
    "setarch",
    "setpriv",
    "setsid",
    "sh",
    "ssh",
    "stdbuf",
    "su",
    "sudo",
    "systemd-run",
    "tcsh",
    "timeout",
    "toybox",
    "unshare",
    "watch",
    "xargs",
    "zsh",
];

/// Returns the words if they may be a command.
///
/// # Errors
/// `unsafe_command` for a shell, a launcher, or words that no program takes; `unclear_command` where a whole line stands in one word.
pub fn check(words: &[String]) -> Result<(), CommandError> {
    let Some(program) = words.first().filter(|program| !program.is_empty()) else { return Err(CommandError::Empty) };
    let bytes: usize = words.iter().map(String::len).sum();
    if words.len() > WORDS_MAX || bytes > ARGV_BYTES_MAX {
        return Err(CommandError::TooLong { words: words.len(), bytes });
    }
    if words.iter().any(|word| word.contains(['\0', '\n', '\r'])) {
        return Err(CommandError::Unprintable);
    }
    let file = program.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    let file = file.strip_suffix(".exe").unwrap_or(&file);
    // A file of the repository is what the repository makes of it, whatever it is called.
    let own = program.contains('/') && !program.starts_with('/') && program.split('/').all(|part| part != "..");
    if LAUNCHERS.contains(&file) && !own {
        return Err(CommandError::Launcher { program: file.to_owned() });
    }
    if program.starts_with('-') || file.is_empty() || file == "." || file == ".." {
        return Err(CommandError::NoProgram);
    }
    let line =
        |c: char| c.is_whitespace() || matches!(c, '|' | '&' | ';' | '<' | '>' | '$' | '`' | '(' | ')' | '"' | '\'');
    if program.contains(line) {
        return Err(CommandError::Line);
    }
    if program.contains('=') {
        return Err(CommandError::Assignment);
    }
    Ok(())
}

/// What the name of a secret ends with, where a value follows.
const SECRET_NAMES: [&str; 10] =
    ["password", "passwd", "passphrase", "pgpass", "secret", "token", "apikey", "api_key", "api-key", "access_key"];

/// Checks that a command may be written down: that it holds no password.
///
/// # Errors
/// `unsafe_command` for a URL with a password, for what is assigned to a name of a secret, and for what follows an option of
/// such a name. What begins with `$` is a name itself.
pub fn check_recorded(words: &[String]) -> Result<(), CommandError> {
    let named = |name: &str| SECRET_NAMES.iter().any(|end| name.to_ascii_lowercase().ends_with(end));
    let is_value = |value: &str| !value.is_empty() && !value.starts_with('$');
    let assigned = |word: &str| {
        let values = word.match_indices('=').map(|(at, _)| word.split_at(at));
        values.into_iter().any(|(name, value)| {
            let value = value.trim_start_matches(['=', ' ', '\'', '"']);
            named(name.trim_end()) && is_value(value)
        })
    };
    let follows = |pair: &[String]| match pair {
        [option, value] => option.starts_with("--") && named(option) && is_value(value) && !value.starts_with('-'),
        _ => false,
    };
    let given = words.iter().any(|word| assigned(word) || has_url_password(word, is_value));
    if given || words.windows(2).any(follows) { Err(CommandError::Password) } else { Ok(()) }
}

/// Returns whether a word holds a URL with a password before its host.
fn has_url_password(word: &str, is_value: impl Fn(&str) -> bool) -> bool {
    word.split("://").skip(1).any(|rest| {
        let Some((user, _)) = rest.split_once('@') else { return false };
        let Some((_, password)) = user.split_once(':') else { return false };
        // A port, and a path that has the sign in it.
        let port = password.split_once('/').is_some_and(|(port, _)| port.bytes().all(|byte| byte.is_ascii_digit()));
        is_value(password) && !port
    })
}

/// Returns a program's name as it may be shown: short, and without control characters.
pub fn shown(program: &str) -> String {
    program.chars().filter(|c| !c.is_control()).take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Code, Failure};

    fn check_words(words: &[&str], expected: Option<Code>) {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let code = check(&words).err().map(|error| Failure::from(error).code);
        assert_eq!(code, expected, "{words:?}");
    }

    #[test]
    fn a_program_with_arguments_is_a_command() {
        check_words(&["npm", "run", "migrate"], None);
        check_words(&["psql", "-Atc", "SELECT current_database(), current_user"], None);
        check_words(&["./scripts/seed.sh"], None);
        check_words(&["./watch"], None);
        check_words(&["/usr/bin/make", "db", "FLAGS=-x | y"], None);
    }

    #[test]
    fn shells_and_launchers_are_unsafe_wherever_they_are() {
        for program in LAUNCHERS {
            check_words(&[program, "-c", "id"], Some(Code::UnsafeCommand));
        }
        check_words(&["/bin/sh", "-c", "id"], Some(Code::UnsafeCommand));
        check_words(&["../../usr/bin/BASH"], Some(Code::UnsafeCommand));
        check_words(&["cmd.exe", "/c", "dir"], Some(Code::UnsafeCommand));
    }

    #[test]
    fn a_line_in_one_word_is_unclear() {
        check_words(&["npm run migrate"], Some(Code::UnclearCommand));
        check_words(&["a;b"], Some(Code::UnclearCommand));
        check_words(&["FOO=1", "npm"], Some(Code::UnclearCommand));
        check_words(&["-x"], Some(Code::UnclearCommand));
        check_words(&["scripts/"], Some(Code::UnclearCommand));
    }

    #[test]
    fn what_no_program_takes_is_unsafe() {
        check_words(&[], Some(Code::UnclearCommand));
        check_words(&["", "x"], Some(Code::UnclearCommand));
        check_words(&["psql", "a\0b"], Some(Code::UnsafeCommand));
        check_words(&["psql", "a\nb"], Some(Code::UnsafeCommand));
    }

    #[test]
    fn a_command_with_a_password_is_not_written_down() {
        let check = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            check_recorded(&words).map_err(|error| Failure::from(error).code)
        };
        for words in [
            &["psql", "postgresql://a:sekrit@localhost/x"][..],
            &["psql", "--dbname=postgres://a:12345@h:5432/x"],
            &["seed", "postgresql://h/x?user=a&password=sekrit"],
            &["seed", "mysql://root:p/w@h"],
            &["psql", "host=h password='sekrit'"],
            &["psql", "host=h password = sekrit"],
            &["make", "seed", "PGPASSWORD=sekrit"],
            &["seed", "--password", "sekrit"],
            &["seed", "--admin-token=abc"],
            &["seed", "https://a:b/c:d@h", "x"],
        ] {
            assert_eq!(check(words), Err(Code::UnsafeCommand), "{words:?}");
        }
        for words in [
            &["npm", "run", "seed"][..],
            &["psql", "postgresql://localhost:5432/x"],
            &["psql", "postgresql://a@localhost:5432/x"],
            &[
                "seed",
                "postgresql://a:$PGPASSWORD@localhost/x",
                "PGPASSWORD=$PGPASSWORD",
                "--password=${P}",
                "password=",
            ],
            &["npx", "--registry", "https://h:8080/@scope/pkg"],
            &["seed", "--password", "--force"],
            &["make", "reset-passwords", "MODE=password"],
        ] {
            assert_eq!(check(words), Ok(()), "{words:?}");
        }
    }

    #[test]
    fn a_command_has_a_bound_of_words_and_of_bytes() {
        let words = |count: usize| vec!["x"; count];
        check_words(&words(WORDS_MAX), None);
        check_words(&words(WORDS_MAX + 1), Some(Code::UnsafeCommand));
        let long = "y".repeat(ARGV_BYTES_MAX - 1);
        check_words(&["x", &long], None);
        check_words(&["x", &long, "z"], Some(Code::UnsafeCommand));
    }
}
