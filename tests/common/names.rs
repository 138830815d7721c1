//! Names that a backend could confuse with each other, or with its own keys.

/// All are different names, and each excludes only itself.
pub const UNUSUAL_NAMES: &[&[u8]] = &[
    b"",
    b"*",
    b"{",
    b"}",
    b"{}",
    b"}{",
    b"{a}",
    b"a}",
    b"a",
    b"A",
    b"aa",
    b"\n",
    b"\0",
    b"\xff\xfe",
    b"a:queue",
    b"a:meta",
    b"limit:{a}",
    b"fleet:mutex:{a}",
    b"a+b",
    b"a/b",
    b"%61",
    b"a b",
    &[b'x'; 10_000],
];
