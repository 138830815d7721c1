//! The Lua scripts, composed at compile time from the files of the folder `script`.

use super::errors;
use crate::error::Error;
use redis::{Cmd, RedisError, Value};
use std::future::Future;
use std::sync::LazyLock;

/// Joins files of the folder `script`.
macro_rules! compose {
    ($($file:literal)*) => {
        concat!($(include_str!(concat!("script/", $file, ".lua")), "\n"),*)
    };
}

/// Executes a batch of calls.
pub(super) static EXCHANGE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(compose!(
        "layout" "arguments" "clock" "call" "read_singles" "fast_path" "uncontended" "attempt" "dispatch"
        "record" "single_holder" "convert" "nodes" "release" "renew" "expire" "grant" "admit" "commit" "reply" "exchange"
    ))
});

/// Lists holders and queued tickets.
pub(super) static INSPECT: LazyLock<Script> =
    LazyLock::new(|| Script::new(compose!("layout" "clock" "record" "attempt" "inspect")));

/// A script, and the hash that the server knows it by.
pub(in crate::backend) struct Script {
    code: &'static str,
    hash: String,
}

// === impl Script ===

impl Script {
    pub(in crate::backend) fn new(code: &'static str) -> Self {
        let hash = redis::Script::new(code).get_hash().to_owned();
        Self { code, hash }
    }

    #[cfg(test)]
    pub(super) fn code(&self) -> &'static str {
        self.code
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
        command.arg(self.code);
        args(&mut command);
        send(command).await
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::{
        GENERAL_SUFFIXES, GUARD_INFIX, PUSH_INFIX, SINGLE_SUFFIX, TOKEN_SUFFIX,
    };

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
