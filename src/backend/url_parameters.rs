//! Rejects unknown parameters of a URL.

use crate::error::Error;

/// Returns an error if a URL has a parameter that is none of `known`, since a misspelt prefix must not be ignored. It names the
/// parameter, unless the text may be part of a password.
pub(crate) fn check_parameters(query: &str, known: &[&str]) -> Result<(), Error> {
    let is_name = |name: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        name.len() <= 32 && name.chars().all(is_part)
    };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, is_pair) = match pair.split_once('=') {
            Some((name, _)) => (name, true),
            None => (pair, false),
        };
        if is_pair && known.contains(&name) {
            continue;
        }
        let known = known.iter().chain(&["prefix"]).copied();
        let known: Vec<_> = known.collect();
        let unknown = match is_pair && is_name(name) && !query.contains('@') {
            true => format!("the URL has the unknown parameter `{name}`"),
            false => "the URL has a text after `?` that is no parameter".to_owned(),
        };
        return Err(Error::config(format!(
            "{unknown}: it takes {}",
            known.join(", ")
        )));
    }
    Ok(())
}
