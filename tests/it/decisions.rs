//! The list of decisions names each of them, by its number and title.

use std::fs;

#[test]
fn each_decision_is_on_the_list_by_number_and_title() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/decisions");
    let list = fs::read_to_string(format!("{folder}/README.md")).unwrap();
    let listed: Vec<&str> = list.lines().filter(|line| line.starts_with("| ") && line.contains(".md)")).collect();
    let mut files: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "README.md")
        .collect();
    files.sort();
    let expected = files.iter().map(|file| {
        let text = fs::read_to_string(format!("{folder}/{file}")).unwrap();
        let (number, title) = text.lines().next().unwrap().strip_prefix("# ").unwrap().split_once(". ").unwrap();
        assert_eq!(format!("{:04}", number.parse::<u32>().unwrap()), file[..4], "{file}");
        format!("| {number} | [{title}]({file}) | ")
    });
    for (line, expected) in listed.iter().zip(expected.clone()) {
        assert!(line.starts_with(&expected), "docs/decisions/README.md: expected `{expected}…`, found `{line}`");
    }
    assert_eq!(listed.len(), files.len(), "docs/decisions/README.md: a row for each, by number: {files:#?}");
}
