//! What was seen, added up: distinct stacks with the count and the time of their samples. Bounded, so that a session
//! may last for months.

use rustc_hash::FxHashMap;

use crate::sample::{Frame, FrameId, Frames, Kind};

pub type StackId = u32;

/// What a thread did when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    On,
    Off,
    Runq,
}

impl State {
    pub const ALL: [State; 3] = [State::On, State::Off, State::Runq];

    /// The name in the data model of the Python side.
    pub fn name(self) -> &'static str {
        match self {
            State::On => "on",
            State::Off => "off",
            State::Runq => "runq",
        }
    }
}

/// Distinct stacks, each once, root first.
#[derive(Debug, Default)]
pub struct StackNumbers {
    list: Vec<std::sync::Arc<[FrameId]>>,
    numbers: FxHashMap<std::sync::Arc<[FrameId]>, StackId>,
}

impl StackNumbers {
    /// The number of this stack; nothing where it is new and there are `bound` already.
    pub fn intern(&mut self, frames: &[FrameId], bound: usize) -> Option<StackId> {
        if let Some(&id) = self.numbers.get(frames) {
            return Some(id);
        }
        if self.list.len() >= bound {
            return None;
        }
        let id = self.list.len() as StackId;
        let frames: std::sync::Arc<[FrameId]> = frames.into();
        self.list.push(frames.clone());
        self.numbers.insert(frames, id);
        Some(id)
    }

    pub fn get(&self, id: StackId) -> &[FrameId] {
        self.list.get(id as usize).map_or(&[], |s| s)
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub count: u64,
    pub ns: u64,
}

/// `(pid, tid)`
pub type ThreadKey = (u32, u32);

/// Frames, stacks and samples of a session. Numbers of stacks hold until [`Table::clear`] says otherwise.
#[derive(Debug)]
pub struct Table {
    pub frames: Frames,
    stacks: StackNumbers,
    samples: FxHashMap<(ThreadKey, State, StackId), Sum>,
    /// Samples whose stack found no room.
    pub crowded: u64,
    bound: usize,
    /// Grows when numbers of stacks lose their meaning.
    pub generation: u32,
    /// Others remember numbers of stacks (of memory that lives): they are never forgotten.
    pub pinned: bool,
}

/// Distinct stacks, and rows of samples, that are kept at once: some tens of MB.
pub const BOUND: usize = 100_000;

/// The rows of one [`Table::take`], with frames and stacks numbered anew: only those that are used.
#[derive(Debug, Default)]
pub struct Rows {
    pub frames: Vec<Frame>,
    pub stacks: Vec<Vec<u32>>,
    /// `(pid, tid, stack, state, count, ns)`
    pub samples: Vec<(u32, u32, u32, State, u64, u64)>,
}

impl Default for Table {
    fn default() -> Self {
        Table::new(BOUND)
    }
}

impl Table {
    pub fn new(bound: usize) -> Table {
        Table {
            frames: Frames::default(),
            stacks: StackNumbers::default(),
            samples: FxHashMap::default(),
            crowded: 0,
            bound,
            generation: 0,
            pinned: false,
        }
    }

    pub fn stack(&mut self, frames: &[FrameId]) -> StackId {
        if let Some(id) = self.stacks.intern(frames, self.bound) {
            return id;
        }
        self.crowded += 1;
        self.named_stack("(other stacks)")
    }

    /// A stack of one frame that says why there is no better one.
    pub fn named_stack(&mut self, what: &str) -> StackId {
        let frame = self.frames.intern(Frame {
            kind: Kind::Native,
            function: what.to_owned(),
            file: String::new(),
            line: 0,
            module: String::new(),
        });
        self.stacks.intern(&[frame], usize::MAX).unwrap_or_default()
    }

    pub fn add(&mut self, thread: ThreadKey, state: State, stack: StackId, count: u64, ns: u64) {
        let mut key = (thread, state, stack);
        if self.samples.len() >= self.bound && !self.samples.contains_key(&key) {
            let other = self.named_stack("(other stacks)");
            if stack != other {
                self.crowded += count;
                key.2 = other;
            }
        }
        let sum = self.samples.entry(key).or_default();
        sum.count += count;
        sum.ns += ns;
    }

    /// Everything since the last time. `exact` says for a thread how long it really was in each state, where that is
    /// known: its samples then share that time in their proportion, to the nanosecond; time of a thread that no sample
    /// fell into gets a row of its own, without a count. `extra` stacks (of calls) are numbered along.
    pub fn take(
        &mut self,
        exact: &FxHashMap<ThreadKey, [Option<u64>; 3]>,
        extra: &[StackId],
    ) -> (Rows, Vec<u32>) {
        let unseen = self.named_stack("(too short to be sampled)");
        let mut groups: FxHashMap<(ThreadKey, State), Vec<(StackId, Sum)>> = FxHashMap::default();
        for ((thread, state, stack), sum) in self.samples.drain() {
            groups.entry((thread, state)).or_default().push((stack, sum));
        }
        for (thread, times) in exact {
            for (state, time) in State::ALL.into_iter().zip(times) {
                let group = (*thread, state);
                match (time, groups.get_mut(&group)) {
                    (Some(ns), Some(rows)) => share(rows, *ns, unseen),
                    (Some(ns), None) if *ns > 0 => {
                        groups.insert(group, vec![(unseen, Sum { count: 0, ns: *ns })]);
                    }
                    _ => {}
                }
            }
        }
        let mut compact = Compact::default();
        let mut keys: Vec<_> = groups.keys().copied().collect();
        keys.sort_unstable();
        for key in keys {
            let ((pid, tid), state) = key;
            let rows = groups.get_mut(&key).map(std::mem::take).unwrap_or_default();
            for (stack, sum) in rows {
                if sum.count > 0 || sum.ns > 0 {
                    let stack = compact.stack(stack, self);
                    compact
                        .rows
                        .samples
                        .push((pid, tid, stack, state, sum.count, sum.ns));
                }
            }
        }
        let extra = extra.iter().map(|s| compact.stack(*s, self)).collect();
        let rows = compact.rows;
        if self.pinned {
            return (rows, extra);
        }
        if self.stacks.len() > self.bound / 2 || self.frames.len() > self.bound * 2 {
            self.clear();
        }
        (rows, extra)
    }

    /// Forgets the stacks, so that what was seen long ago holds no memory. Frames stay: targets remember their numbers,
    /// and there are only as many as there is code.
    fn clear(&mut self) {
        self.stacks = StackNumbers::default();
        self.generation += 1;
    }
}

/// Shares `exact` among rows in proportion to their time, so that the sum is `exact` to the nanosecond.
fn share(rows: &mut Vec<(StackId, Sum)>, exact: u64, unseen: StackId) {
    rows.sort_unstable_by_key(|(stack, _)| *stack);
    let total: u128 = rows.iter().map(|(_, s)| u128::from(s.ns)).sum();
    if total == 0 {
        rows.push((unseen, Sum { count: 0, ns: exact }));
        return;
    }
    let (mut seen, mut given) = (0u128, 0u64);
    for (_, sum) in rows.iter_mut() {
        seen += u128::from(sum.ns);
        let upto = (u128::from(exact) * seen / total) as u64;
        sum.ns = upto - given;
        given = upto;
    }
}

#[derive(Default)]
struct Compact {
    rows: Rows,
    stacks: FxHashMap<StackId, u32>,
    frames: FxHashMap<FrameId, u32>,
}

impl Compact {
    fn stack(&mut self, id: StackId, table: &Table) -> u32 {
        if let Some(&n) = self.stacks.get(&id) {
            return n;
        }
        let mut stack = Vec::with_capacity(table.stacks.get(id).len());
        for &frame in table.stacks.get(id) {
            let rows = &mut self.rows;
            let n = *self.frames.entry(frame).or_insert_with(|| {
                if let Some(frame) = table.frames.get(frame) {
                    rows.frames.push(frame.clone());
                }
                (rows.frames.len() - 1) as u32
            });
            stack.push(n);
        }
        let n = self.rows.stacks.len() as u32;
        self.rows.stacks.push(stack);
        self.stacks.insert(id, n);
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(table: &mut Table, name: &str) -> FrameId {
        table.frames.intern(Frame {
            kind: Kind::Python,
            function: name.to_owned(),
            file: String::new(),
            line: 1,
            module: String::new(),
        })
    }

    #[test]
    fn equal_stacks_are_one_and_their_samples_add_up() {
        let mut t = Table::default();
        let (a, b) = (frame(&mut t, "a"), frame(&mut t, "b"));
        let (x, y) = (t.stack(&[a, b]), t.stack(&[a, b]));
        assert_eq!(x, y);
        t.add((1, 2), State::On, x, 1, 10);
        t.add((1, 2), State::On, y, 1, 5);
        let (rows, _) = t.take(&FxHashMap::default(), &[]);
        assert_eq!(rows.samples, [(1, 2, 0, State::On, 2, 15)]);
        assert_eq!(rows.stacks, [[0, 1]]);
        assert_eq!(rows.frames.len(), 2);
        assert!(t.take(&FxHashMap::default(), &[]).0.samples.is_empty());
    }

    #[test]
    fn samples_share_the_exact_time_to_the_nanosecond() {
        let mut t = Table::default();
        for (i, ns) in [7u64, 11, 13].into_iter().enumerate() {
            let f = frame(&mut t, &i.to_string());
            let s = t.stack(&[f]);
            t.add((1, 1), State::Off, s, 1, ns);
        }
        let exact = FxHashMap::from_iter([((1, 1), [Some(3), Some(1_000_003), Some(0)])]);
        let (rows, _) = t.take(&exact, &[]);
        let off: Vec<_> = rows.samples.iter().filter(|s| s.3 == State::Off).collect();
        assert_eq!(off.iter().map(|s| s.5).sum::<u64>(), 1_000_003);
        assert!(off[0].5 < off[1].5 && off[1].5 < off[2].5);
        // Three nanoseconds on a CPU that no sample fell into have a row that claims no sample.
        let on: Vec<_> = rows.samples.iter().filter(|s| s.3 == State::On).collect();
        assert_eq!((on.len(), on[0].4, on[0].5), (1, 0, 3));
        assert!(!rows.samples.iter().any(|s| s.3 == State::Runq));
    }

    #[test]
    fn more_stacks_than_the_bound_are_counted_and_lose_no_time() {
        let mut t = Table::new(10);
        for i in 0..100 {
            let f = frame(&mut t, &i.to_string());
            let s = t.stack(&[f]);
            t.add((1, 1), State::On, s, 1, 1);
        }
        assert_eq!(t.crowded, 90);
        let before = t.generation;
        let (rows, _) = t.take(&FxHashMap::default(), &[]);
        assert_eq!(rows.samples.iter().map(|s| s.4).sum::<u64>(), 100);
        assert_eq!(rows.samples.iter().map(|s| s.5).sum::<u64>(), 100);
        assert!(rows.stacks.len() <= 11);
        assert!(t.generation > before);
    }

    #[test]
    fn stacks_of_calls_are_numbered_along() {
        let mut t = Table::default();
        let (a, b) = (frame(&mut t, "a"), frame(&mut t, "b"));
        let (x, y) = (t.stack(&[a]), t.stack(&[a, b]));
        t.add((1, 2), State::On, x, 1, 10);
        let (rows, extra) = t.take(&FxHashMap::default(), &[y, x]);
        assert_eq!(extra, [1, 0]);
        assert_eq!(rows.stacks, [vec![0], vec![0, 1]]);
    }
}
