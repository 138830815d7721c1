//! A redis-server for one test: on a free port, in a temporary folder, killed when dropped.

use super::pause;
use super::server::{self, free_port};
use crate::HANG_GUARD;
use redis::{Parser, Value};
use std::fmt;
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A running redis-server that belongs to one test. All methods are synchronous: usable inside and outside of a runtime.
pub struct RedisServer {
    child: Option<Child>,
    /// Kills the server when its input ends. That happens when the test program ends, even by SIGKILL.
    guard: Option<Child>,
    port: u16,
    /// Replaces `{tls}` in `args`.
    tls_port: u16,
    /// Replaces `{bus}` in `args`: the port of the cluster bus.
    bus_port: u16,
    args: Vec<String>,
    /// The configuration file, which sentinels rewrite.
    config: Option<String>,
    env: Vec<(String, String)>,
    folder: TempDir,
}

/// The reply of a server, with the differences that matter to a test.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Nil,
    Text(String),
    Int(i64),
    Error(String),
    List(Vec<Answer>),
}

// === impl RedisServer ===

/// Reads again when a signal interrupts, which the parser does not.
struct Uninterrupted(TcpStream);

impl io::Read for Uninterrupted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

impl RedisServer {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with arguments for its command line: `&["--maxmemory", "4mb"]`. `{tls}` and `{bus}` in them are
    /// replaced by free ports.
    pub fn start_with(args: &[&str]) -> Self {
        Self::start_with_env(args, [])
    }

    /// Starts a server with environment variables.
    pub fn start_with_env(args: &[&str], env: impl IntoIterator<Item = (String, String)>) -> Self {
        Self::start_all(args, None, env)
    }

    /// Starts a server with a configuration file.
    pub fn start_with_config(args: &[&str], config: String) -> Self {
        Self::start_all(args, Some(config), [])
    }

    fn start_all(
        args: &[&str],
        config: Option<String>,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let mut server = Self {
            child: None,
            guard: None,
            port: 0,
            tls_port: 0,
            bus_port: 0,
            config,
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            env: env.into_iter().collect(),
            folder: tempfile::tempdir().expect("a folder for redis-server"),
        };
        // Another process may bind the free port before the server does. Then other ports are tried.
        for _ in 0..20 {
            server.port = free_port();
            server.tls_port = free_port();
            server.bus_port = free_port();
            server.write_config();
            server.run();
            if server.wait_until_it_answers() {
                return server;
            }
            server.kill();
        }
        panic!("redis-server does not start with {args:?}");
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the URL with the credentials of one user.
    pub fn url_of(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn tls_port(&self) -> u16 {
        self.tls_port
    }

    pub fn bus_port(&self) -> u16 {
        self.bus_port
    }

    /// `host:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Adds arguments for the next start.
    pub fn add_args(&mut self, args: &[&str]) {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
    }

    /// Whether the server reports itself as master.
    pub fn is_master(&self) -> bool {
        let role = self.try_command(&["ROLE"]);
        matches!(role, Ok(Answer::List(role)) if role[0].text() == "master")
    }

    /// Sends SIGKILL, if the server runs.
    pub fn kill(&mut self) {
        server::kill(&mut self.guard);
        server::kill(&mut self.child);
    }

    /// The same as [`kill`](Self::kill): nothing is ever saved.
    pub fn stop(&mut self) {
        self.kill();
    }

    /// Kills the server if it runs and starts it again on the same port: without data, unless `args` enable persistence.
    pub fn restart(&mut self) {
        self.kill();
        let end = Instant::now() + HANG_GUARD;
        while Instant::now() < end {
            self.run();
            if self.wait_until_it_answers() {
                return;
            }
            self.kill();
            sleep(Duration::from_millis(20));
        }
        panic!("redis-server does not start again on port {}", self.port);
    }

    /// Sends SIGSTOP: connections stay open, no request is answered.
    pub fn pause(&self) {
        self.child.iter().for_each(pause::pause);
    }

    /// Sends SIGCONT.
    pub fn resume(&self) {
        self.child.iter().for_each(pause::resume);
    }

    /// Sends one command over a new connection. An error reply is an [`Answer::Error`]. Panics if the server does not answer.
    pub fn command(&self, words: &[&str]) -> Answer {
        self.try_command(words)
            .unwrap_or_else(|error| panic!("{words:?} was not answered: {error}"))
    }

    /// The same as [`command`](Self::command), for servers that may be down.
    pub fn try_command(&self, words: &[&str]) -> io::Result<Answer> {
        let mut answers = self.try_commands(&[words])?;
        answers.pop().ok_or(io::ErrorKind::UnexpectedEof.into())
    }

    /// Sends several commands over one connection.
    pub fn try_commands(&self, commands: &[&[&str]]) -> io::Result<Vec<Answer>> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(HANG_GUARD))?;
        let mut request = Vec::new();
        for words in commands {
            let mut command = redis::Cmd::new();
            command.arg(words);
            request.extend(command.get_packed_command());
        }
        stream.write_all(&request)?;
        let (mut parser, mut stream) = (Parser::new(), Uninterrupted(stream));
        let answers = commands.iter().map(|_| {
            let value = parser.parse_value(&mut stream).map_err(io::Error::other)?;
            Answer::from_value(value)
        });
        answers.collect()
    }

    fn run(&mut self) {
        let child = self.spawn();
        self.guard = Some(server::run_at_exit(format_args!("kill -9 {}", child.id())));
        self.child = Some(child);
    }

    fn write_config(&self) {
        if let Some(config) = &self.config {
            std::fs::write(self.config_file(), config).expect("a file for redis-server");
        }
    }

    fn config_file(&self) -> std::path::PathBuf {
        self.folder.path().join("redis.conf")
    }

    fn spawn(&self) -> Child {
        let (tls, bus) = (self.tls_port.to_string(), self.bus_port.to_string());
        let args = self.args.iter();
        let args = args.map(|arg| arg.replace("{tls}", &tls).replace("{bus}", &bus));
        server::spawn(
            "redis-server",
            Command::new("redis-server")
                .args(self.config.as_ref().map(|_| self.config_file()))
                .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
                .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
                .arg("--dir")
                .arg(self.folder.path())
                .args(args)
                .envs(self.env.iter().cloned()),
        )
    }

    fn wait_until_it_answers(&mut self) -> bool {
        let end = Instant::now() + HANG_GUARD;
        while Instant::now() < end {
            let ended = self
                .child
                .as_mut()
                .is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            if ended {
                return false;
            }
            if let Ok(answer) = self.try_command(&["INFO", "server"]) {
                // Another test's server may have the port.
                let own_pid = format!("process_id:{}\r", self.pid());
                return match answer {
                    Answer::Text(info) => info.contains(&own_pid),
                    Answer::Error(_) => true, // a password is required: this server has one
                    _ => false,
                };
            }
            sleep(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

impl fmt::Debug for RedisServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisServer(127.0.0.1:{})", self.port)
    }
}

// === impl Answer ===

impl Answer {
    fn from_value(value: Value) -> io::Result<Self> {
        Ok(match value {
            Value::Nil => Self::Nil,
            Value::Int(number) => Self::Int(number),
            Value::Okay => Self::Text("OK".to_owned()),
            Value::SimpleString(text) => Self::Text(text),
            Value::BulkString(bytes) => Self::Text(String::from_utf8_lossy(&bytes).into_owned()),
            Value::Array(items) => {
                let items = items.into_iter().map(Self::from_value);
                Self::List(items.collect::<io::Result<_>>()?)
            }
            Value::ServerError(error) => {
                let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
                Self::Error(text.trim_end().to_owned())
            }
            other => return Err(io::Error::other(format!("not a RESP2 value: {other:?}"))),
        })
    }

    /// Returns the text, a number as text, or `""`.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) | Self::Error(text) => text.clone(),
            Self::Int(number) => number.to_string(),
            Self::Nil | Self::List(_) => String::new(),
        }
    }

    /// Returns the number. Panics if the reply is not a number.
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            Self::Text(text) => text
                .parse()
                .unwrap_or_else(|_| panic!("{text:?} is not a number")),
            other => panic!("{other:?} is not a number"),
        }
    }

    /// Returns the texts of a list. Panics if the reply is not a list.
    pub fn list(&self) -> Vec<String> {
        match self {
            Self::List(items) => items.iter().map(Self::text).collect(),
            other => panic!("{other:?} is not a list"),
        }
    }
}
