//! Parses the authority of a URL: `[user[:password]@]host[:port][,host[:port]…]`.
//!
//! The URLs of all backends with servers have this form, with as many hosts as the backend has. `user` and `password` are
//! percent-encoded; an IPv6 address is in brackets.
//!
//! An error never repeats any of the text, which may hold a password.

use std::fmt;

/// The authority of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Authority {
    /// `None` without an `@`.
    pub(crate) credentials: Option<Credentials>,
    /// At least one.
    pub(crate) hosts: Vec<Host>,
}

/// The user and the password, decoded.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) user: String,
    /// `None` without a `:`.
    pub(crate) password: Option<String>,
}

/// One host. [`Display`](fmt::Display) writes it as in a URL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Host {
    /// Without the brackets of an IPv6 address.
    pub(crate) name: String,
    pub(crate) port: Option<u16>,
}

/// What is wrong with an authority, without any of its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(&'static str);

// === impl Authority ===

impl Authority {
    /// Parses what follows `://`. Returns the authority, and the path, query and fragment after it.
    ///
    /// The authority ends at the first `/`, `?` or `#`. A password may hold an `@` that is not encoded, but none of these.
    pub(crate) fn parse(text: &str) -> Result<(Self, &str), Malformed> {
        let end = text.find(['/', '?', '#']).unwrap_or(text.len());
        let (authority, tail) = text.split_at(end);
        let path = &tail[..tail.find(['?', '#']).unwrap_or(tail.len())];
        if path.contains('@') {
            // Else part of a password would be a host name, which messages do repeat.
            return Err(Malformed(
                "a `/` in the user or the password, or an `@` in the path, is not percent-encoded",
            ));
        }
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => (Some(Credentials::parse(credentials)?), hosts),
            None => (None, authority),
        };
        let hosts = Host::parse_list(hosts)?;
        Ok((Self { credentials, hosts }, tail))
    }
}

// === impl Credentials ===

impl Credentials {
    fn parse(text: &str) -> Result<Self, Malformed> {
        let (user, password) = match text.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (text, None),
        };
        Ok(Self {
            user: percent_decode(user)?,
            password: password.map(percent_decode).transpose()?,
        })
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

// === impl Host ===

impl Host {
    /// Parses `host[:port][,host[:port]…]`.
    pub(crate) fn parse_list(text: &str) -> Result<Vec<Self>, Malformed> {
        text.split(',').map(Self::parse).collect()
    }

    /// Parses `host`, `host:port`, `[address]` or `[address]:port`.
    pub(crate) fn parse(text: &str) -> Result<Self, Malformed> {
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (name, port) = rest
                    .split_once(']')
                    .ok_or(Malformed("a bracket of an IPv6 address is not closed"))?;
                let port = match port.strip_prefix(':') {
                    Some(port) => Some(port),
                    None if port.is_empty() => None,
                    None => return Err(Malformed("a host has text after its closing bracket")),
                };
                (name, port)
            }
            None => match text.split_once(':') {
                Some((_, port)) if port.contains(':') => {
                    return Err(Malformed("an IPv6 address is not in brackets"));
                }
                Some((name, port)) => (name, Some(port)),
                None => (text, None),
            },
        };
        if name.is_empty() {
            return Err(Malformed("a host is empty"));
        }
        let is_allowed = |c: char| c.is_alphanumeric() || ".-_:%".contains(c);
        if !name.chars().all(is_allowed) {
            return Err(Malformed(
                "a host contains a character that no host name has",
            ));
        }
        let port = match port {
            Some(port) => Some(parse_port(port)?),
            None => None,
        };
        Ok(Self {
            name: name.to_owned(),
            port,
        })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]", self.name)?,
            false => f.write_str(&self.name)?,
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

// === impl Malformed ===

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

fn parse_port(text: &str) -> Result<u16, Malformed> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(port) if is_number && port > 0 => Ok(port),
        _ => Err(Malformed("a port is not a number from 1 to 65535")),
    }
}

/// Decodes `%40` and the like.
pub(crate) fn percent_decode(text: &str) -> Result<String, Malformed> {
    match percent_encoding::percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(Malformed("a percent-encoded part is not UTF-8")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (Option<(String, Option<String>)>, Vec<String>, &str) {
        let (authority, tail) = Authority::parse(text).expect(text);
        let credentials = authority.credentials.map(|c| (c.user, c.password));
        let hosts = authority.hosts.iter().map(Host::to_string).collect();
        (credentials, hosts, tail)
    }

    #[test]
    fn hosts_have_names_or_addresses_and_a_port_if_given() {
        for hosts in [
            "h",
            "h:1",
            "10.0.0.1:65535",
            "[::1]",
            "[::1]:2379",
            "[fe80::1%25eth0]:1",
            "a-b.c_d:1",
            "a:1,b,[::1]:3",
        ] {
            let (credentials, found, tail) = parsed(hosts);
            assert_eq!((credentials, tail), (None, ""), "{hosts}");
            assert_eq!(found.join(","), hosts);
        }
        let host = Host::parse("[::1]:7").expect("an address");
        assert_eq!((host.name.as_str(), host.port), ("::1", Some(7)));
    }

    #[test]
    fn credentials_are_percent_decoded() {
        let some = |user: &str, password: Option<&str>| {
            Some((user.to_owned(), password.map(str::to_owned)))
        };
        for (text, expected) in [
            ("u:p@h", some("u", Some("p"))),
            ("u@h", some("u", None)),
            ("u:@h", some("u", Some(""))),
            (":p@h", some("", Some("p"))),
            ("@h", some("", None)),
            ("u%3A%40:p%2F%3F%23%25@h", some("u:@", Some("p/?#%"))),
            ("u:p:q@h", some("u", Some("p:q"))),
            ("u:p@q@h", some("u", Some("p@q"))),
            ("u:p%C3%A9@h", some("u", Some("pé"))),
        ] {
            assert_eq!(parsed(text).0, expected, "{text}");
        }
    }

    #[test]
    fn the_rest_of_the_url_is_returned_as_it_is() {
        for (text, tail) in [
            ("u:p@h:1,i:2/a/b?c=d", "/a/b?c=d"),
            ("h?c=d@e/f", "?c=d@e/f"),
            ("h#f", "#f"),
            ("h/", "/"),
        ] {
            assert_eq!(parsed(text).2, tail, "{text}");
        }
    }

    #[test]
    fn malformed_authorities_are_rejected_without_repeating_the_secret() {
        for text in [
            "",
            ",",
            "secret@",
            "u:secret@h,",
            "u:secret@,h",
            "u:secret@:1",
            "u:secret@h:",
            "u:secret@h:0",
            "u:secret@h:65536",
            "u:secret@h:+1",
            "u:secret@h:x",
            "u:secret@::1",
            "u:secret@[::1",
            "u:secret@[]:1",
            "u:secret@[::1]1",
            "u:secret@h h",
            "u:secret%FF@h",
            "u:secret/x@h:1",
            "u:1/secret@h:1",
            "u:secret?x@h:1",
            "u:secret#x@h:1",
        ] {
            let error = Authority::parse(text).expect_err(text).to_string();
            assert!(!error.contains("secret"), "{text}: {error}");
        }
    }

    #[test]
    fn debug_output_hides_the_password() {
        let (authority, _) = Authority::parse("u:secret@h").expect("an authority");
        let text = format!("{authority:?}");
        assert!(text.contains("user: \"u\""), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }
}
