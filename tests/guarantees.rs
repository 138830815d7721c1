//! The tests named in the table of guarantees exist, and the README has the same rows as the guide.

use std::collections::BTreeSet;
use std::fs::{read_dir, read_to_string};
use std::path::Path;

const GUIDE: &str = include_str!("../src/guide/guarantees.rs");
const README: &str = include_str!("../README.md");

#[test]
fn every_named_test_exists() {
    let named: BTreeSet<&str> = GUIDE.split('`').filter(|word| is_test(word)).collect();
    assert!(named.len() > 50, "only {named:?}");
    let mut code = String::new();
    for folder in ["../src", "."] {
        read_code(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join(folder),
            &mut code,
        );
    }
    let is_there = |name: &&str| {
        code.contains(&format!("fn {name}(")) || code.contains(&format!("fn {name}<"))
    };
    let missing: Vec<_> = named.into_iter().filter(|name| !is_there(name)).collect();
    assert!(missing.is_empty(), "no such tests: {missing:#?}");
}

#[test]
fn every_fault_has_a_test_or_a_reason() {
    let mut faults = 0;
    for row in rows() {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        if let [fault, _, _, _, shown] = cells[..]
            && !["fault", "---"].contains(&fault)
        {
            faults += 1;
            let tested = shown.split('`').any(is_test);
            assert!(
                tested || shown.starts_with("not tested: "),
                "{fault}: {shown}"
            );
        }
    }
    assert!(faults > 40, "only {faults}");
}

#[test]
fn the_readme_has_the_same_rows() {
    let rows: Vec<_> = rows().filter(|row| row.matches('|').count() == 8).collect();
    assert!(rows.len() > 8, "only {rows:#?}");
    assert!(
        README.contains(&rows.join("\n")),
        "not the same in the README"
    );
}

fn rows() -> impl Iterator<Item = &'static str> {
    let lines = GUIDE.lines().filter_map(|line| line.strip_prefix("//! "));
    lines.filter(|line| line.starts_with('|'))
}

/// Test names of this crate have several words.
fn is_test(word: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    word.matches('_').count() > 1 && word.chars().all(fits)
}

fn read_code(folder: &Path, code: &mut String) {
    for entry in read_dir(folder).expect("a folder of this crate") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            read_code(&path, code);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            code.push_str(&read_to_string(path).expect("a file of this crate"));
        }
    }
}
