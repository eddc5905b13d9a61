//! What looking costs this process itself: its processor time, all threads and the interpreter's work included.

use std::time::Instant;

use crate::clock::clock_ns;

/// From the start of a session on.
#[derive(Debug)]
pub struct OwnCost {
    started_cpu_ns: u64,
    attach_ns: u64,
    since: Instant,
    since_cpu_ns: u64,
}

impl OwnCost {
    /// To be made before anything is done for the session.
    pub fn start() -> OwnCost {
        let cpu_ns = process_cpu_ns();
        OwnCost {
            started_cpu_ns: cpu_ns,
            attach_ns: 0,
            since: Instant::now(),
            since_cpu_ns: cpu_ns,
        }
    }

    /// Everything is loaded and attached: what was spent so far is told for itself, because it does not come again.
    pub fn attached(&mut self) {
        self.since_cpu_ns = process_cpu_ns();
        self.since = Instant::now();
        self.attach_ns = self.since_cpu_ns.saturating_sub(self.started_cpu_ns);
    }

    /// Seconds of processor time that loading and attaching took.
    pub fn attach_s(&self) -> f64 {
        self.attach_ns as f64 / 1e9
    }

    /// Percent of one CPU since the last time, or since everything was attached.
    pub fn take_pct(&mut self) -> f64 {
        let cpu_ns = process_cpu_ns();
        let spent_ns = cpu_ns.saturating_sub(std::mem::replace(&mut self.since_cpu_ns, cpu_ns));
        let passed = std::mem::replace(&mut self.since, Instant::now()).elapsed();
        spent_ns as f64 * 100.0 / passed.as_nanos().max(1) as f64
    }
}

fn process_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_any_thread_counts_and_the_start_is_told_apart() {
        let work = || {
            let until = clock_ns(libc::CLOCK_THREAD_CPUTIME_ID) + 3_000_000;
            while clock_ns(libc::CLOCK_THREAD_CPUTIME_ID) < until {}
        };
        let mut cost = OwnCost::start();
        work();
        cost.attached();
        let attach_s = cost.attach_s();
        assert!(attach_s >= 0.003);
        let since = Instant::now();
        std::thread::spawn(work).join().expect("it ends");
        let pct = cost.take_pct();
        assert!(pct * since.elapsed().as_secs_f64() / 100.0 >= 0.003);
        assert_eq!(cost.attach_s(), attach_s);
    }
}
