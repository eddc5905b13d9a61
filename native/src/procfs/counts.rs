//! How well the stacks of a look came out.

use crate::sample::Resolved;

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub samples: u64,
    /// Samples with native frames, and how many of those reach the thread's start.
    pub native: u64,
    pub rooted: u64,
    pub with_python: u64,
    pub mismatches: u64,
    pub frames: u64,
    pub unsymbolised: u64,
    /// Thrown away because the thread moved while it was read.
    pub moved: u64,
    /// Looks at running threads whose frames changed while they were read: what two reads agree on was kept.
    pub torn: u64,
    pub first_ns: Option<u64>,
}

impl Counts {
    pub fn add(&mut self, resolved: &Resolved, python: bool, time_ns: u64) {
        self.samples += 1;
        self.with_python += u64::from(python);
        self.mismatches += u64::from(resolved.mismatch);
        self.frames += u64::from(resolved.native);
        self.unsymbolised += u64::from(resolved.unsymbolised);
        if resolved.native > 0 {
            self.native += 1;
            self.rooted += u64::from(resolved.rooted);
        }
        if resolved.complete && self.first_ns.is_none() {
            self.first_ns = Some(time_ns);
        }
    }
}
