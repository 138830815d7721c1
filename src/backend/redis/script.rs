//! The Lua scripts, composed at compile time from the files of the folder `script`.
//!
//! A file-level constant of Lua costs server time in each execution, and more in each function that uses it. So a script is sent with
//! the values in place of the names: a line `local NAME = value`, where the value is a number or a text, defines a constant.

use super::errors;
use crate::error::Error;
use redis::{Cmd, RedisError, Value};
use std::collections::HashMap;
use std::future::Future;
use std::sync::LazyLock;

/// Joins files of the folder `script`.
macro_rules! compose {
    ($($file:literal)*) => {
        concat!($(include_str!(concat!("script/", $file, ".lua")), "\n"),*)
    };
}

/// A function whose body is joined from files: they share its arguments and their local variables.
macro_rules! function {
    ($head:literal: $($file:literal)*) => {
        concat!("local function ", $head, "\n", compose!($($file)*), "end\n")
    };
}

/// Executes a batch of calls.
pub(super) static EXCHANGE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        compose!("layout" "arguments" "clock" "call" "read_singles" "fast_path" "delete_singles"),
        function!("exchange_uncontended(state, read)":
            "read_meta" "release_uncontended" "acquire_uncontended"),
        compose!("protected_call" "uncontended" "record" "nodes" "grant" "write_meta"),
        function!("exchange_general(state)":
            "read_general" "release" "renew" "expire" "sweep" "admit" "commit" "reply"),
        compose!("read_single" "single_holder" "convert" "exchange"),
    ))
});

/// Lists holders and queued tickets.
pub(super) static INSPECT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        compose!("layout" "clock" "record" "read_single" "protected_call" "inspect_general" "inspect"),
    )
});

/// A script, and the hash that the server knows it by.
pub(in crate::backend) struct Script {
    code: String,
    hash: String,
}

// === impl Script ===

impl Script {
    pub(in crate::backend) fn new(code: &'static str) -> Self {
        let code = inline_constants(code);
        let hash = redis::Script::new(&code).get_hash().to_owned();
        Self { code, hash }
    }

    #[cfg(test)]
    pub(super) fn code(&self) -> &str {
        &self.code
    }

    /// Executes the script by its hash, or by its code if the server does not know the hash.
    pub(super) async fn run<F>(
        &self,
        args: impl Fn(&mut Cmd),
        send: impl Fn(Cmd) -> F,
    ) -> Result<Result<Value, RedisError>, Error>
    where
        F: Future<Output = Result<Result<Value, RedisError>, Error>>,
    {
        // Space for a call with few tickets.
        let mut command = Cmd::with_capacity(16, 512);
        command.arg("EVALSHA").arg(&self.hash);
        args(&mut command);
        match send(command).await? {
            Err(error) if errors::is_script_missing(&error) => {}
            answer => return Ok(answer),
        }
        let mut command = redis::cmd("EVAL");
        command.arg(&self.code);
        args(&mut command);
        send(command).await
    }
}

/// Replaces each constant by its value, and removes the lines that define it.
fn inline_constants(code: &str) -> String {
    let (constants, rest): (Vec<_>, Vec<_>) =
        code.lines().partition(|line| constant(line).is_some());
    let constants: HashMap<_, _> = constants.into_iter().filter_map(constant).collect();
    let mut inlined = String::with_capacity(code.len());
    for line in rest {
        let is_part_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let mut left = line;
        while let Some(start) = left.find(is_part_of_name) {
            let (before, from) = left.split_at(start);
            let end = from.find(|letter| !is_part_of_name(letter));
            let (name, after) = from.split_at(end.unwrap_or(from.len()));
            inlined.push_str(before);
            inlined.push_str(constants.get(name).unwrap_or(&name));
            left = after;
        }
        inlined.push_str(left);
        inlined.push('\n');
    }
    inlined
}

/// Returns the name and the value if the line defines a constant.
fn constant(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.strip_prefix("local ")?.split_once(" = ")?;
    let value = value.split(" --").next()?.trim_end();
    let is_text = value.len() > 1
        && value.starts_with('\'')
        && value[1..].find('\'') == Some(value.len() - 2);
    let is_name = name
        .bytes()
        .all(|letter| letter.is_ascii_uppercase() || letter == b'_');
    (is_name && (is_text || value.parse::<i64>().is_ok())).then_some((name, value))
}

#[cfg(test)]
mod tests {
    use super::super::keys::{
        GENERAL_SUFFIXES, GUARD_INFIX, PUSH_INFIX, SINGLE_SUFFIX, TOKEN_SUFFIX,
    };

    #[test]
    fn constants_are_replaced_by_their_values() {
        let code = "local STATE = 'st' -- a field\nlocal STATE_BYTES = 59\nlocal FREE = -1\nlocal call = redis.call\n\
            local KEY = KEYS[1]\nreturn call('GET', KEY, STATE, STATE_BYTES, ESTATE, FREE)";
        let inlined = "local call = redis.call\nlocal KEY = KEYS[1]\nreturn call('GET', KEY, 'st', 59, ESTATE, -1)\n";
        assert_eq!(super::inline_constants(code), inlined);
    }

    const LAYOUT: &str = include_str!("script/layout.lua");

    /// The text that a constant of `layout.lua` has.
    fn text(name: &str) -> &str {
        let start = format!("local {name} = '");
        let line = LAYOUT.lines().find_map(|line| line.strip_prefix(&start));
        let line = line.unwrap_or_else(|| panic!("{name} is no text of layout.lua"));
        line.split('\'').next().unwrap()
    }

    /// The number that a constant of `layout.lua` has.
    fn number(name: &str) -> usize {
        let start = format!("local {name} = ");
        let line = LAYOUT.lines().find_map(|line| line.strip_prefix(&start));
        let line = line.unwrap_or_else(|| panic!("{name} is no number of layout.lua"));
        line.split(' ').next().unwrap().parse().unwrap()
    }

    #[test]
    fn keys_are_those_of_the_layout() {
        let suffixes = ["", text("QUEUE_SUFFIX"), text("META_SUFFIX")];
        assert_eq!(GENERAL_SUFFIXES, suffixes);
        assert_eq!(SINGLE_SUFFIX, text("SINGLE_SUFFIX"));
        assert_eq!(GUARD_INFIX, text("GUARD_INFIX"));
        assert_eq!(TOKEN_SUFFIX, text("TOKEN_SUFFIX"));
        assert_eq!(PUSH_INFIX, text("PUSH_INFIX"));
    }

    #[test]
    fn records_have_the_bytes_of_their_format() {
        for record in ["STATE", "NODE", "GAPS", "SINGLE", "GUARD", "TOKEN"] {
            let format = text(record).strip_prefix('<').unwrap();
            let format = format.strip_suffix("c0").unwrap_or(format);
            let bytes = format.chars().map(|field| match field {
                'B' => 1,
                'H' => 2,
                'd' => 8,
                other => panic!("{record} has a field {other}"),
            });
            let bytes = bytes.sum::<usize>();
            assert_eq!(bytes, number(&format!("{record}_BYTES")), "{record}");
            assert!(format.starts_with('B'), "{record} starts with its version");
            let is_field = matches!(record, "STATE" | "NODE" | "GAPS");
            assert!(!is_field || bytes <= 64, "{record} is stored compactly");
        }
    }
}
