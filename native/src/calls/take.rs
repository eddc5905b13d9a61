//! What was seen since the last time, as rows.

use std::path::Path;

use rustc_hash::FxHashSet;

use super::groups::FILE_CALLS;
use super::object::{self, CallKey, CallSum};
use super::{rdma, CallRow, CallRows, Calls, Resolver, FIRST_FUNCTION, TCP};

impl Calls {
    /// What came since the last take.
    pub fn take(&mut self, resolver: &mut dyn Resolver) -> CallRows {
        self.drain(resolver);
        let mut rows = CallRows {
            spans: std::mem::take(&mut self.spans),
            spans_dropped: std::mem::take(&mut self.spans_dropped),
            ..CallRows::default()
        };
        self.count(&mut rows.calls);
        if self.wanted.memory() {
            if let Err(error) = self.memory.rows(&self.kernel, resolver, &mut rows) {
                self.note(format!("memory: {error}"));
            }
        }
        self.served.take(&mut rows.spans, &mut rows.calls, resolver);
        rows.cuts.clone_from(&self.cuts);
        self.count_ports(&mut rows.calls);
        self.losses(&mut rows);
        self.forget_ended();
        rows
    }

    fn name(&self, function: u32) -> Option<(String, &'static str)> {
        Some(match function {
            1..=3 => (TCP[function as usize - 1].to_owned(), "tcp"),
            16..FIRST_FUNCTION => (FILE_CALLS.get(function as usize - 16)?.to_string(), "file"),
            _ => {
                let found = self
                    .functions
                    .get((function - FIRST_FUNCTION.min(function)) as usize)?;
                if found.mark.is_some() {
                    return None; // told as runs of a model
                }
                (found.name.clone(), found.kind)
            }
        })
    }

    fn count(&mut self, into: &mut Vec<CallRow>) {
        let sums = match self.kernel.map("calls").and_then(|m| m.all::<CallKey, CallSum>()) {
            Ok(sums) => sums,
            Err(error) => return self.note(format!("calls: the table cannot be read: {error}")),
        };
        for (key, now) in sums {
            let before = self.previous.insert(key, now).unwrap_or_default();
            let count = now.count.saturating_sub(before.count);
            let timed = now.timed.saturating_sub(before.timed);
            if count == 0 && timed == 0 {
                continue;
            }
            let Some((name, kind)) = self.name(key.function) else {
                continue;
            };
            into.push(CallRow {
                pid: key.tgid,
                tid: key.tid,
                name,
                kind,
                count,
                ns: (timed > 0).then(|| now.ns.saturating_sub(before.ns)),
                bytes: now.bytes.saturating_sub(before.bytes),
            });
        }
        into.sort_by(|a, b| (a.pid, a.tid, a.kind, &a.name).cmp(&(b.pid, b.tid, b.kind, &b.name)));
    }

    /// RDMA counters are the machine's and no process's: their rows have the pid 0.
    fn count_ports(&mut self, into: &mut Vec<CallRow>) {
        if !self.wanted.rdma {
            return;
        }
        let now = rdma::ports(Path::new("/sys/class/infiniband"));
        for (port, after) in &now {
            let before = self.ports.get(port).copied().unwrap_or_default();
            for (way, a, b) in [
                ("sent", after.sent, before.sent),
                ("received", after.received, before.received),
            ] {
                into.push(CallRow {
                    pid: 0,
                    tid: 0,
                    name: format!("{port} {way}"),
                    kind: "rdma",
                    count: a.0.saturating_sub(b.0),
                    ns: None,
                    bytes: a.1.saturating_sub(b.1),
                });
            }
        }
        self.ports = now;
    }

    fn losses(&mut self, rows: &mut CallRows) {
        for (at, what) in object::LOST.into_iter().enumerate() {
            let now = self.kernel.sum("lost", at as u32);
            let more = now.saturating_sub(self.lost[at]);
            self.lost[at] = now;
            match (at, more) {
                (_, 0) => {}
                (0, n) => rows.spans_dropped += n,
                (1, _) => {} // told again at the next allocation of that place
                (_, n) => self.note(format!("{n} {what}")),
            }
        }
    }

    /// What ended processes leave in the kernel's tables is of no more use; their numbers may come again.
    fn forget_ended(&mut self) {
        if self.ended.is_empty() {
            return;
        }
        let ended: FxHashSet<u32> = std::mem::take(&mut self.ended).into_iter().collect();
        if let Ok(map) = self.kernel.map("calls") {
            for key in self.previous.keys().filter(|k| ended.contains(&k.tgid)) {
                let _ = map.delete(key);
            }
        }
        self.previous.retain(|k, _| !ended.contains(&k.tgid));
        self.memory.forget(&self.kernel, &ended);
        if let Ok(map) = self.kernel.map("pythons") {
            for pid in &ended {
                let _ = map.delete(pid);
            }
        }
    }
}
