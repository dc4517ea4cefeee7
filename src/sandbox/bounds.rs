//! The bounds of what callers choose: names, labels, extensions. Checked before anything is decided, so that the
//! facts a policy sees are small, and once more where a sandbox is made.

use std::collections::BTreeSet;

use crate::model::limits::{EXTENSIONS_MAX, LABEL_BYTES_MAX, LABELS_MAX, NAME_BYTES_MAX};
use crate::model::{Code, Failure};

/// The longest name of an extension: Postgres' limit for identifiers.
const EXTENSION_BYTES_MAX: usize = 63;
/// The longest name of a template.
const TEMPLATE_NAME_BYTES_MAX: usize = 80;
/// The longest note: a page of text.
const NOTES_BYTES_MAX: usize = 4096;

/// Checks the length of a name that a caller chose.
///
/// # Errors
/// `invalid_arguments`, naming the argument.
pub fn check_text(argument: &str, text: Option<&str>) -> Result<(), Failure> {
    let Some(text) = text else { return Ok(()) };
    if text.len() > NAME_BYTES_MAX {
        let length = text.len();
        return Err(Failure::new(Code::InvalidArguments, format!("`{argument}` of {length} bytes is too long"))
            .hint(format!("use {NAME_BYTES_MAX} bytes or less")));
    }
    if text.contains('\0') {
        return Err(Failure::new(Code::InvalidArguments, format!("`{argument}` holds a NUL character")));
    }
    Ok(())
}

/// Checks what a template is called.
///
/// # Errors
/// `invalid_artifact_name`.
pub fn check_template_name(name: &str) -> Result<(), Failure> {
    let letters = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
    if letters && (1..=TEMPLATE_NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    let shown: String = name.chars().take(TEMPLATE_NAME_BYTES_MAX).flat_map(char::escape_default).collect();
    Err(Failure::new(Code::InvalidArtifactName, format!("`{shown}` is no name of a template"))
        .hint(format!("use 1 to {TEMPLATE_NAME_BYTES_MAX} letters, digits, `_`, `.` or `-`")))
}

/// Checks what is noted of a template.
///
/// # Errors
/// `invalid_arguments`.
pub fn check_notes(notes: Option<&str>) -> Result<(), Failure> {
    let Some(notes) = notes else { return Ok(()) };
    if notes.len() > NOTES_BYTES_MAX {
        let length = notes.len();
        return Err(Failure::new(Code::InvalidArguments, format!("`notes` of {length} bytes are too long"))
            .hint(format!("use {NOTES_BYTES_MAX} bytes or less")));
    }
    if notes.contains('\0') {
        return Err(Failure::new(Code::InvalidArguments, "`notes` hold a NUL character"));
    }
    Ok(())
}

/// Checks the number and length of labels, and that no key is given twice.
///
/// # Errors
/// `invalid_arguments`.
pub fn check_labels(labels: &[(String, String)]) -> Result<(), Failure> {
    let invalid = |text: String| Failure::new(Code::InvalidArguments, text);
    if labels.len() > LABELS_MAX {
        return Err(invalid(format!("{} labels are too many", labels.len())).hint(format!("use {LABELS_MAX} or less")));
    }
    for (key, value) in labels {
        if key.is_empty() {
            return Err(invalid("a label has an empty key".to_owned()));
        }
        if key.len() > LABEL_BYTES_MAX || value.len() > LABEL_BYTES_MAX {
            return Err(invalid("a label's key or value is too long".to_owned())
                .hint(format!("use {LABEL_BYTES_MAX} bytes or less for each")));
        }
        if key.contains('\0') || value.contains('\0') {
            return Err(invalid("a label holds a NUL character".to_owned()));
        }
    }
    let mut keys = BTreeSet::new();
    match labels.iter().map(|(key, _)| key).find(|key| !keys.insert(*key)) {
        Some(key) => Err(invalid(format!("the label `{key}` is given twice"))),
        None => Ok(()),
    }
}

/// Checks that extensions are named as extensions are, and not too many.
///
/// # Errors
/// `invalid_extensions`.
pub fn check_extension_names(asked: &[String]) -> Result<(), Failure> {
    if asked.len() > EXTENSIONS_MAX {
        return Err(Failure::new(Code::InvalidExtensions, format!("{} extensions are too many", asked.len()))
            .hint(format!("ask for {EXTENSIONS_MAX} or less")));
    }
    for name in asked {
        let letters = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-');
        if !letters || name.is_empty() || name.len() > EXTENSION_BYTES_MAX {
            let shown: String = name.chars().take(EXTENSION_BYTES_MAX).flat_map(char::escape_default).collect();
            return Err(Failure::new(Code::InvalidExtensions, format!("`{shown}` is no extension's name"))
                .hint("use lower-case letters, digits, `_` and `-`"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_templates_are_bounded() {
        let longest = "n".repeat(TEMPLATE_NAME_BYTES_MAX);
        for good in ["a", "Base_1.2-x", &longest] {
            assert!(check_template_name(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "a/b", "ä", "a\0", "x'; drop", &format!("{longest}n")] {
            assert_eq!(
                check_template_name(bad).map_err(|failure| failure.code),
                Err(Code::InvalidArtifactName),
                "{bad}"
            );
        }
    }

    #[test]
    fn notes_are_bounded() {
        assert!(check_notes(Some(&"n".repeat(NOTES_BYTES_MAX))).is_ok());
        assert!(check_notes(Some(&"n".repeat(NOTES_BYTES_MAX + 1))).is_err());
        assert!(check_notes(Some("a\0")).is_err());
    }

    fn check_labels_of(labels: &[(&str, &str)], ok: bool) {
        let labels: Vec<_> = labels.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        assert_eq!(check_labels(&labels).is_ok(), ok, "{labels:?}");
    }

    #[test]
    fn labels_are_bounded() {
        check_labels_of(&[("task", "x"), ("branch", "")], true);
        check_labels_of(&[("task", "x"), ("task", "y")], false);
        check_labels_of(&[("", "x")], false);
        check_labels_of(&[("task", "a\0b")], false);
        check_labels_of(&[("task", &"x".repeat(LABEL_BYTES_MAX))], true);
        check_labels_of(&[("task", &"x".repeat(LABEL_BYTES_MAX + 1))], false);
        let keys: Vec<String> = (0..=LABELS_MAX).map(|n| n.to_string()).collect();
        let many: Vec<_> = keys.iter().map(|key| (key.as_str(), "")).collect();
        check_labels_of(&many[1..], true);
        check_labels_of(&many, false);
    }
}
