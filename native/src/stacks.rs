//! What samples, blocked threads and calls share: the processes, and the table that their stacks go to.

use crate::calls::Resolver;
use crate::processes::Processes;
use crate::python::PyConfig;
use crate::sample::RawSample;
use crate::table::{StackId, Table};

/// Resolves stacks and adds them up.
#[derive(Default)]
pub struct Stacks {
    pub table: Table,
    pub processes: Processes,
}

impl Resolver for Stacks {
    fn stack(&mut self, sample: &RawSample<'_>) -> StackId {
        let resolved = self.processes.resolve(sample, &mut self.table);
        if resolved.frames.is_empty() {
            return self.unknown();
        }
        self.table.stack(&resolved.frames)
    }

    fn unknown(&mut self) -> StackId {
        self.table.named_stack("(not resolved)")
    }

    fn python(&mut self, pid: u32) -> Option<PyConfig> {
        self.processes.target(pid)?.python()
    }
}
