//! The outer part of a stack is the same from sample to sample: what a walk did there holds again, if it comes to a frame
//! with the same registers and all that was read from there on still stands on the stack.

use super::registers::Registers;

/// One frame of the native stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NativeFrame {
    /// The instruction pointer or return address.
    pub ip: u64,
    /// The address that belongs to the instruction that was interrupted or that called.
    pub lookup: u64,
}

/// What the last walk over a thread's stack did between its last guess and the root, by unwind data alone. Holds as long
/// as the code of the process is the same.
#[derive(Debug, Default)]
pub struct Trail {
    /// Root first: the outer part stays where it is.
    steps: Vec<Step>,
    /// Address, and what stood there (nothing where it could not be read), in the order of the steps.
    reads: Vec<(u64, Option<u64>)>,
}

#[derive(Debug)]
struct Step {
    regs: Registers,
    exact: bool,
    frame: NativeFrame,
    /// How many reads it and the steps outside of it made.
    reads: usize,
}

impl Trail {
    pub(super) fn clear(&mut self) {
        self.steps.clear();
        self.reads.clear();
    }

    /// Of a walk that stands here: how many frames up to the root are as they were. `read` gives what is on the stack
    /// now; `changed` is the innermost read that may still be the same, once one was found that is not.
    pub(super) fn holds(
        &self,
        regs: &Registers,
        exact: bool,
        changed: &mut usize,
        mut read: impl FnMut(u64) -> Option<u64>,
    ) -> Option<usize> {
        let outside = self.steps.partition_point(|s| s.regs.sp() >= regs.sp());
        let step = self.steps.get(outside.checked_sub(1)?)?;
        if step.reads > *changed || step.exact != exact || step.regs != *regs {
            return None;
        }
        let reads = self.reads.get(..step.reads)?;
        match reads.iter().rposition(|(addr, word)| read(*addr) != *word) {
            Some(at) => {
                *changed = at;
                None
            }
            None => Some(outside),
        }
    }

    /// The outermost `n` frames, the innermost of them first.
    pub(super) fn frames(&self, n: usize) -> impl Iterator<Item = NativeFrame> + '_ {
        self.steps[..n.min(self.steps.len())]
            .iter()
            .rev()
            .map(|s| s.frame)
    }

    /// The outermost `n` frames stay, and what a walk found inside of them is added.
    fn go_on(&mut self, n: usize, inside: &Steps) {
        self.steps.truncate(n);
        self.reads.truncate(self.steps.last().map_or(0, |s| s.reads));
        let mut to = inside.reads.len();
        for (regs, exact, frame, from) in inside.steps.iter().rev() {
            self.reads.extend_from_slice(&inside.reads[*from..to]);
            to = *from;
            self.steps.push(Step {
                regs: *regs,
                exact: *exact,
                frame: *frame,
                reads: self.reads.len(),
            });
        }
    }
}

/// What a walk does, leaf first.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// With the number of reads before.
    steps: Vec<(Registers, bool, NativeFrame, usize)>,
    reads: Vec<(u64, Option<u64>)>,
    /// It came to a root that the unwind data names, or onto the trail of the walk before.
    ended: bool,
}

impl Steps {
    /// A guess may turn out otherwise the next time: only what comes after it is kept.
    pub(super) fn clear(&mut self) {
        self.steps.clear();
        self.reads.clear();
        self.ended = false;
    }

    pub(super) fn step(&mut self, regs: Registers, exact: bool, frame: NativeFrame) {
        self.steps.push((regs, exact, frame, self.reads.len()));
    }

    pub(super) fn read(&mut self, addr: u64, word: Option<u64>) {
        self.reads.push((addr, word));
    }

    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// Makes this the trail; its outermost `same` frames are those of the walk before.
    pub(super) fn into_trail(self, same: usize, trail: &mut Trail) {
        if self.ended {
            trail.go_on(same, &self);
        } else {
            trail.clear();
        }
    }
}
