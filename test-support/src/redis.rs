//! A redis-server of a test's own: on a free port, in a folder that goes away, killed when dropped.

use super::pause;
use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a server may take to answer its first PING, and a command to be answered.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running redis-server that nobody else uses. Everything is synchronous: usable in and outside of a runtime.
pub struct RedisServer {
    child: Option<Child>,
    /// Kills the server when its input ends, that is when the test program does, even by SIGKILL.
    guard: Option<Child>,
    port: u16,
    /// Stands for `{tls}` in `args`.
    tls_port: u16,
    /// Stands for `{bus}` in `args`: that of a cluster's nodes among themselves.
    bus_port: u16,
    args: Vec<String>,
    /// Written to a file that the server may rewrite, as sentinels do.
    config: Option<String>,
    env: Vec<(String, String)>,
    folder: TempDir,
}

/// What a server answered, as `redis-cli` would show it in a test's eyes.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Nil,
    Text(String),
    Int(i64),
    Error(String),
    List(Vec<Answer>),
}

// === impl RedisServer ===

impl RedisServer {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// `args` go to the command line of redis-server: `&["--maxmemory", "4mb"]`. `{tls}` and `{bus}` in them are other free ports.
    pub fn start_with(args: &[&str]) -> Self {
        Self::start_with_env(args, [])
    }

    /// With variables in its environment.
    pub fn start_with_env(args: &[&str], env: impl IntoIterator<Item = (String, String)>) -> Self {
        Self::start_all(args, None, env)
    }

    /// With a configuration file.
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
        // Somebody else may take a free port before the server does: then the next one.
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

    /// The URL of one user, for tests of rights.
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

    /// For the next start.
    pub fn add_args(&mut self, args: &[&str]) {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
    }

    /// Whether it says so itself.
    pub fn is_master(&self) -> bool {
        let role = self.try_command(&["ROLE"]);
        matches!(role, Ok(Answer::List(role)) if role[0].text() == "master")
    }

    /// SIGKILL: nothing is said good-bye to. Fine if it does not run.
    pub fn kill(&mut self) {
        for mut child in [self.guard.take(), self.child.take()].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The same as [`kill`](Self::kill): nothing is ever saved.
    pub fn stop(&mut self) {
        self.kill();
    }

    /// Kills it if it runs and starts it again on the same port: empty, unless its `args` let it save.
    pub fn restart(&mut self) {
        self.kill();
        let end = Instant::now() + PATIENCE;
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

    /// SIGSTOP: connections stay open, nothing is answered.
    pub fn pause(&self) {
        self.child.iter().for_each(pause::pause);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.child.iter().for_each(pause::resume);
    }

    /// One command over a connection of its own. An error answer is an [`Answer::Error`], a dead server a panic.
    pub fn command(&self, words: &[&str]) -> Answer {
        self.try_command(words)
            .unwrap_or_else(|error| panic!("{words:?} was not answered: {error}"))
    }

    /// [`command`](Self::command), for servers that may be down.
    pub fn try_command(&self, words: &[&str]) -> io::Result<Answer> {
        let mut answers = self.try_commands(&[words])?;
        answers.pop().ok_or(io::ErrorKind::UnexpectedEof.into())
    }

    /// Several commands over one connection.
    pub fn try_commands(&self, commands: &[&[&str]]) -> io::Result<Vec<Answer>> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut request = String::new();
        for words in commands {
            request.push_str(&format!("*{}\r\n", words.len()));
            for word in *words {
                request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
            }
        }
        stream.write_all(request.as_bytes())?;
        let mut reader = BufReader::new(stream);
        commands.iter().map(|_| read_answer(&mut reader)).collect()
    }

    fn run(&mut self) {
        let child = self.spawn();
        let guard = Command::new("sh")
            .args(["-c", &format!("read _; kill -9 {}", child.id())])
            .stdin(Stdio::piped())
            .spawn();
        self.child = Some(child);
        self.guard = Some(guard.expect("a shell"));
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
        Command::new("redis-server")
            .args(self.config.as_ref().map(|_| self.config_file()))
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .arg("--dir")
            .arg(self.folder.path())
            .args(args)
            .envs(self.env.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => panic!("redis-server is not installed: run tests/run"),
                _ => panic!("redis-server does not start: {error}"),
            })
    }

    fn wait_until_it_answers(&mut self) -> bool {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let ended = self
                .child
                .as_mut()
                .is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            if ended {
                return false;
            }
            if let Ok(answer) = self.try_command(&["INFO", "server"]) {
                // Another test's server on this port is not ours.
                let ours = format!("process_id:{}\r", self.pid());
                return match answer {
                    Answer::Text(info) => info.contains(&ours),
                    Answer::Error(_) => true, // a password is wanted: ours to have set
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
    /// The text, a number as text, or `""`.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) | Self::Error(text) => text.clone(),
            Self::Int(number) => number.to_string(),
            Self::Nil | Self::List(_) => String::new(),
        }
    }

    /// The number. Panics if it is none.
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            Self::Text(text) => text
                .parse()
                .unwrap_or_else(|_| panic!("{text:?} is no number")),
            other => panic!("{other:?} is no number"),
        }
    }

    /// The texts of a list. Panics if it is none.
    pub fn list(&self) -> Vec<String> {
        match self {
            Self::List(items) => items.iter().map(Self::text).collect(),
            other => panic!("{other:?} is no list"),
        }
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a free port").port()
}

fn read_answer(reader: &mut impl BufRead) -> io::Result<Answer> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let line = line.trim_end();
    let (kind, rest) = line.split_at_checked(1).unwrap_or(("", ""));
    let number = || {
        rest.parse::<i64>()
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
    };
    Ok(match kind {
        "+" => Answer::Text(rest.to_owned()),
        "-" => Answer::Error(rest.to_owned()),
        ":" => Answer::Int(number()?),
        "$" => match usize::try_from(number()?) {
            Ok(length) => {
                let mut bytes = vec![0; length + 2];
                reader.read_exact(&mut bytes)?;
                Answer::Text(String::from_utf8_lossy(&bytes[..length]).into_owned())
            }
            Err(_) => Answer::Nil,
        },
        "*" => match usize::try_from(number()?) {
            Ok(length) => Answer::List(
                (0..length)
                    .map(|_| read_answer(reader))
                    .collect::<io::Result<_>>()?,
            ),
            Err(_) => Answer::Nil,
        },
        _ => return Err(io::ErrorKind::InvalidData.into()),
    })
}
