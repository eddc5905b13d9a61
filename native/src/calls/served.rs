//! A server among the watched: where it listens, what passes on its connections, runs of its model.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};

use super::groups::Mark;
use super::listeners::{shown, Listeners, PATH_MAX};
use super::object::{CallsObject, Passed, SpanEvent};
use super::runs::Runs;
use super::weights::{self, Parameters};
use super::{bandwidth, CallRow, Resolver, SpanRow};

const LISTENERS_EVERY: Duration = Duration::from_secs(1);
/// `PORT_UNIX` of calls.h.
const PORT_UNIX: u32 = 0x10000;
const AF_UNIX: u16 = 1;
const AF_INET: u16 = 2;

/// What the rings tell of a server.
pub enum ServerEvent {
    Passed(Passed),
    Mark(Mark, SpanEvent),
}

#[derive(Default)]
pub struct Served {
    ports: FxHashSet<u32>,
    paths: FxHashSet<String>,
    looked: Option<Instant>,
    pub runs: Runs,
    /// One of them trains: its connections are those of a job.
    pub trains: bool,
    ran: FxHashSet<u32>,
    parameters: FxHashMap<u32, Option<Parameters>>,
    bandwidth: Option<bandwidth::Measured>,
}

impl Served {
    /// Whether it is time to look again where processes listen.
    pub fn is_due(&mut self) -> bool {
        let due = self.looked.is_none_or(|last| last.elapsed() >= LISTENERS_EVERY);
        if due {
            self.looked = Some(Instant::now());
        }
        due
    }

    /// Looks where a process listens. Gives whether any does.
    pub fn look(&mut self, kernel: &CallsObject, pid: u32) -> io::Result<bool> {
        // One that has ended meanwhile listens nowhere.
        let found = Listeners::of(pid).unwrap_or_default();
        let unix = (!found.paths.is_empty()).then_some(PORT_UNIX);
        for port in found.ports.iter().map(|&p| u32::from(p)).chain(unix) {
            if self.ports.insert(port) {
                kernel.map("ports")?.put(&port, &1u32)?;
            }
        }
        self.paths.extend(found.paths);
        Ok(!self.ports.is_empty())
    }

    /// What passed on a connection. Nothing: it is none of a server's.
    fn passed(&mut self, event: &Passed) -> Option<SpanRow> {
        let name = self.name(event)?;
        let sent = event.sent != 0;
        let head = &event.head[..event.head.len().min(event.bytes as usize)];
        if sent {
            self.runs.sent(event.tgid, event.ns);
        }
        Some(SpanRow {
            pid: event.tgid,
            tid: event.tid,
            name,
            kind: kind(sent, head),
            start_ns: event.ns,
            end_ns: event.ns,
            bytes: event.bytes.into(),
        })
    }

    /// `LOCAL>REMOTE`.
    fn name(&self, event: &Passed) -> Option<String> {
        if event.family == AF_UNIX {
            let path = [event.local, event.remote].concat();
            let path = shown(&path[..PATH_MAX]);
            // A server's connections have its path; the client's side has none.
            return self
                .paths
                .contains(&path)
                .then(|| format!("unix:{path}>unix:#{:x}", event.socket & 0xffff_ffff));
        }
        let address = |bytes: &[u8; 16], port| {
            let ip = if event.family == AF_INET {
                IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]))
            } else {
                IpAddr::V6(Ipv6Addr::from(*bytes)).to_canonical()
            };
            SocketAddr::new(ip, port)
        };
        Some(format!(
            "{}>{}",
            address(&event.local, event.local_port),
            address(&event.remote, event.remote_port)
        ))
    }

    /// Events of connections and of models in the order of their times; gives the spans of the former.
    pub fn seen(&mut self, mut events: Vec<ServerEvent>) -> Vec<SpanRow> {
        events.sort_by_key(|event| match event {
            ServerEvent::Passed(passed) => passed.ns,
            ServerEvent::Mark(_, span) => span.start_ns,
        });
        let mut spans = Vec::new();
        for event in events {
            match event {
                ServerEvent::Passed(passed) => spans.extend(self.passed(&passed)),
                ServerEvent::Mark(mark, s) => self.runs.mark(s.tgid, s.tid, mark, s.start_ns, s.end_ns),
            }
        }
        spans
    }

    /// Runs that are over, and what the models that ran hold of parameters.
    pub fn take(&mut self, spans: &mut Vec<SpanRow>, calls: &mut Vec<CallRow>, resolver: &mut dyn Resolver) {
        for (pid, tid, start_ns, end_ns) in self.runs.take() {
            self.ran.insert(pid);
            spans.push(SpanRow {
                pid,
                tid,
                name: "forward".to_owned(),
                kind: "forward",
                start_ns,
                end_ns,
                bytes: 0,
            });
        }
        if self.ran.is_empty() || self.trains {
            return;
        }
        for &pid in &self.ran {
            let known = self.parameters.entry(pid).or_insert_with(|| {
                let python = resolver.python(pid)?;
                weights::parameters(&crate::memory::ProcessMemory::new(pid), &python)
            });
            if let Some(found) = known {
                calls.extend(found.rows(pid));
            }
        }
        let measured = self.bandwidth.get_or_insert_with(bandwidth::measure);
        calls.push(measured.row());
    }
}

/// How the bytes of a connection are told: by what they begin with, where that is HTTP. `get` asks for what is there
/// (health, figures), `ask` gives something to work on; `done` ends a stream of events, as is the custom of such servers.
fn kind(sent: bool, head: &[u8]) -> &'static str {
    const ASKS: [&[u8]; 4] = [b"POST ", b"PUT ", b"PATCH ", b"PRI * HT"];
    const GETS: [&[u8]; 4] = [b"GET ", b"HEAD ", b"OPTIONS ", b"DELETE "];
    let begins = |words: &[&[u8]]| words.iter().any(|word| head.starts_with(word));
    match sent {
        false if begins(&ASKS) => "ask",
        false if begins(&GETS) => "get",
        false => "recv",
        true if head.starts_with(b"HTTP/1.") => "head",
        true if head.windows(6).any(|w| w == b"[DONE]") => "done",
        true => "send",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(family: u16, local: &[u8], remote: &[u8], sent: u16, head: &[u8]) -> Passed {
        let mut event = Passed {
            tgid: 7,
            family,
            local_port: 8000,
            remote_port: 51234,
            bytes: 90,
            sent,
            socket: 0xabc,
            ..Passed::default()
        };
        event.head[..head.len()].copy_from_slice(head);
        event.local[..local.len()].copy_from_slice(local);
        event.remote[..remote.len()].copy_from_slice(remote);
        event
    }

    #[test]
    fn connections_are_named_by_their_ends() {
        let mut served = Served::default();
        let v4 = passed(2, &[10, 0, 0, 1], &[10, 0, 0, 9], 0, b"POST /v1");
        let span = served.passed(&v4).unwrap();
        assert_eq!(
            (span.name.as_str(), span.kind),
            ("10.0.0.1:8000>10.0.0.9:51234", "ask")
        );
        let mut loopback = [0u8; 16];
        loopback[15] = 1;
        let v6 = served
            .passed(&passed(10, &loopback, &loopback, 1, b"HTTP/1.1"))
            .unwrap();
        assert_eq!((v6.name.as_str(), v6.kind), ("[::1]:8000>[::1]:51234", "head"));
        let mapped = Ipv4Addr::new(127, 0, 0, 1).to_ipv6_mapped().octets();
        let span = served
            .passed(&passed(10, &mapped, &mapped, 1, b"e\r\ndata: [DONE]\n\n"))
            .unwrap();
        assert_eq!(
            (span.name.as_str(), span.kind),
            ("127.0.0.1:8000>127.0.0.1:51234", "done")
        );
    }

    #[test]
    fn a_unix_socket_counts_where_a_watched_process_listens() {
        let mut served = Served::default();
        let event = passed(1, b"/run/models/llam", b"a.sock", 0, b"GET / HT");
        assert!(served.passed(&event).is_none());
        served.paths.insert("/run/models/llama.sock".to_owned());
        assert_eq!(
            served.passed(&event).unwrap().name,
            "unix:/run/models/llama.sock>unix:#abc"
        );
    }
}
