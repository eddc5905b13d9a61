//! The walk over a stack, with bounds on all its work.

use std::sync::Arc;

use super::prologue::{Moved, Old, Prologue};
use super::registers::Registers;
use super::rule::{Rule, Stop};
use super::trail::{NativeFrame, Steps, Trail};
use crate::memory::Memory;
use crate::sample::Outer;

/// Frames of one stack.
pub const FRAMES_MAX: usize = 512;
/// Bytes of the stack that are searched for a return address, at each frame without unwind data.
const SCAN_MAX: u64 = 32 << 10;
/// No stack is larger, as far as running off its copy goes.
const STACK_MAX: u64 = 1 << 30;
/// So far a function moves its stack pointer for arrays of its own.
const MOVED_MAX: u64 = 64 << 20;
/// Steps of all trials together, for one stack.
const STEPS_MAX: u32 = 6000;
/// Continuations that are tried, for one stack.
const TRIALS_MAX: u32 = 256;
/// Frames without unwind data that may follow each other (or stand in one stack) before trials end.
const GUESSES_DEEP: u32 = 160;
/// Words below a return address in which a saved frame pointer is looked for.
const SAVED_WORDS: u64 = 16;

/// What a walk must know of the code of a process.
pub trait Code {
    /// How the function at this address leads to its caller; nothing without unwind data.
    fn rule(&mut self, addr: u64) -> Option<Arc<Rule>>;
    /// Is there executable memory?
    fn is_code(&self, addr: u64) -> bool;
    /// Is it executable, and is the instruction before it a call?
    fn follows_call(&mut self, addr: u64) -> bool;
    /// Where the direct call before this address leads: nothing for other calls.
    fn call_target(&mut self, addr: u64) -> Option<u64>;
    /// A stub that jumps to a function of another library.
    fn is_stub(&mut self, addr: u64) -> bool;
    /// Start of the function, and what its first instructions did to the stack up to this address.
    fn function(&mut self, addr: u64) -> Option<(u64, Prologue)>;
    /// A function that threads and processes start in.
    fn is_root(&mut self, addr: u64) -> bool;
    /// Unwind data led to this address, where there is no code that is known.
    fn missed(&mut self, addr: u64);
}

/// Leaf first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walked {
    pub frames: Vec<NativeFrame>,
    pub rooted: bool,
    /// The copy of the stack ended before the stack did.
    pub cut_off: bool,
    /// Frames whose caller was found by trial.
    pub guessed: u32,
    /// Bytes of the stack's copy up to the highest that was read.
    pub stack_used: usize,
    /// So many frames, up to the root, are those of the walk before.
    pub same: usize,
}

/// A copy of a stack; what lies above it is read from memory where that is allowed.
pub struct Stack<'a> {
    sp: u64,
    bytes: &'a [u8],
    outer: Outer<'a>,
    above: Option<&'a dyn Memory>,
    page: (u64, Vec<u8>),
    /// An address above the copy was asked for and could not be read.
    ran_off: bool,
    used: usize,
}

impl<'a> Stack<'a> {
    const PAGE: u64 = 4096;

    pub fn new(sp: u64, bytes: &'a [u8], outer: Outer<'a>, above: Option<&'a dyn Memory>) -> Self {
        Self {
            sp,
            bytes,
            outer,
            above,
            page: (0, Vec::new()),
            ran_off: false,
            used: 0,
        }
    }

    pub fn read(&mut self, addr: u64) -> Option<u64> {
        let far = addr.checked_sub(self.sp)?;
        if let Some(word) = word_at(self.bytes, far) {
            self.used = self.used.max(far as usize + 8);
            return Some(word);
        }
        if let Some(word) = self.outer.read(addr) {
            return Some(word);
        }
        let word = self.read_above(addr);
        self.ran_off |= word.is_none() && far < self.bytes.len() as u64 + STACK_MAX;
        word
    }

    fn read_above(&mut self, addr: u64) -> Option<u64> {
        let memory = self.above?;
        let start = addr & !(Self::PAGE - 1);
        if self.page.0 != start || self.page.1.is_empty() {
            self.page = (start, memory.bytes(start, Self::PAGE as usize)?);
        }
        let o = (addr - start) as usize;
        match self.page.1.get(o..o + 8) {
            Some(b) => Some(u64::from_le_bytes(b.try_into().ok()?)),
            None => memory.u64(addr),
        }
    }
}

fn word_at(bytes: &[u8], far: u64) -> Option<u64> {
    let at = usize::try_from(far).ok()?;
    let word = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(word.try_into().ok()?))
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// Led nowhere.
    Lost,
    /// Led to the end of what is known of the stack.
    CutOff,
    Rooted,
}

struct Walker<'c, 's, 'a, C> {
    code: &'c mut C,
    stack: &'s mut Stack<'a>,
    frames: Vec<NativeFrame>,
    steps: u32,
    trials: u32,
    guessed: u32,
    before: &'c Trail,
    trail: Steps,
    /// See [`Trail::holds`].
    changed: usize,
    same: usize,
}

/// Walks from the registers to the root of the stack.
pub fn walk<C: Code>(code: &mut C, regs: Registers, stack: &mut Stack<'_>) -> Walked {
    walk_again(code, regs, stack, &mut Trail::default())
}

/// The same, for a stack that was walked before: its trail is used where it still holds, and becomes that of this walk.
pub fn walk_again<C: Code>(
    code: &mut C,
    regs: Registers,
    stack: &mut Stack<'_>,
    trail: &mut Trail,
) -> Walked {
    let mut walker = Walker {
        code,
        stack,
        frames: Vec::with_capacity(64),
        steps: 0,
        trials: 0,
        guessed: 0,
        before: trail,
        trail: Steps::default(),
        changed: usize::MAX,
        same: 0,
    };
    if !walker.code.is_code(regs.ip()) {
        walker.code.missed(regs.ip());
    }
    let outcome = walker.run(regs, true, 0);
    let walked = Walked {
        frames: walker.frames,
        rooted: outcome == Outcome::Rooted,
        cut_off: outcome == Outcome::CutOff,
        guessed: walker.guessed,
        stack_used: walker.stack.used,
        same: walker.same,
    };
    walker.trail.into_trail(walked.same, trail);
    walked
}

impl<C: Code> Walker<'_, '_, '_, C> {
    /// Follows the stack from here. `exact`: the instruction pointer was interrupted there, it is no return address.
    fn run(&mut self, mut regs: Registers, mut exact: bool, deep: u32) -> Outcome {
        loop {
            self.steps += 1;
            if self.frames.len() >= FRAMES_MAX || self.steps > STEPS_MAX {
                return Outcome::Lost;
            }
            let ip = regs.ip();
            let lookup = if exact { ip } else { ip.wrapping_sub(1) };
            if self.goes_on_as_before(&regs, exact) {
                return Outcome::Rooted;
            }
            let frame = NativeFrame { ip, lookup };
            self.frames.push(frame);
            self.trail.step(regs, exact, frame);
            let Some(rule) = self.code.rule(lookup) else {
                return self.guess(regs, exact, deep);
            };
            let before = regs;
            let ran_off = std::mem::take(&mut self.stack.ran_off);
            let (stack, trail) = (&mut *self.stack, &mut self.trail);
            let followed = rule.follow(&mut regs, exact, &mut |addr| {
                let word = stack.read(addr);
                trail.read(addr, word);
                word
            });
            let off_the_end = std::mem::replace(&mut self.stack.ran_off, ran_off);
            match followed {
                // No return address: the bottom of a stack, unless it is a trial that went astray.
                Ok(()) if regs.ip() == 0 && deep == 0 => return Outcome::Rooted,
                Ok(()) if self.code.is_code(regs.ip()) => exact = rule.signal,
                Ok(()) => {
                    self.code.missed(regs.ip());
                    return self.guess(before, exact, deep);
                }
                Err(Stop::End) => {
                    self.trail.end();
                    return Outcome::Rooted;
                }
                Err(Stop::Unread) if off_the_end => return Outcome::CutOff,
                _ => return self.guess(before, exact, deep),
            }
        }
    }

    /// The rest of the stack is as the walk before found it: its frames are taken.
    fn goes_on_as_before(&mut self, regs: &Registers, exact: bool) -> bool {
        let stack = &mut *self.stack;
        let ran_off = stack.ran_off;
        let holds = self
            .before
            .holds(regs, exact, &mut self.changed, |addr| stack.read(addr));
        stack.ran_off = ran_off;
        let Some(same) = holds.filter(|n| self.frames.len() + n <= FRAMES_MAX) else {
            return false;
        };
        self.same = same;
        self.frames.extend(self.before.frames(same));
        self.trail.end();
        true
    }

    /// Tries what could be the caller of the last frame, the likeliest first, and keeps the one that reaches the root.
    fn guess(&mut self, regs: Registers, exact: bool, deep: u32) -> Outcome {
        let lookup = if exact {
            regs.ip()
        } else {
            regs.ip().wrapping_sub(1)
        };
        if self.code.is_root(lookup) {
            return Outcome::Rooted;
        }
        if deep >= GUESSES_DEEP {
            return Outcome::Lost;
        }
        let mut best = (Outcome::Lost, Vec::new(), self.guessed);
        let function = self.code.function(lookup);
        let found = self.by_prologue(regs, function.map(|f| f.1), deep, &mut best)
            || self.by_scan(regs, function.map(|f| f.0), deep, &mut best)
            || self.by_frame_pointer(regs, deep, &mut best);
        if found {
            return Outcome::Rooted;
        }
        let (outcome, tail, guessed) = best;
        self.trail.clear();
        self.frames.extend_from_slice(&tail);
        self.guessed = guessed;
        // A leaf of which nothing is known at all, on a stack that ends: nothing calls it.
        outcome
    }

    /// True if the caller so described leads to the root; else the best of all attempts is remembered.
    fn attempt(
        &mut self,
        caller: (u64, u64, Option<u64>),
        regs: Registers,
        deep: u32,
        best: &mut (Outcome, Vec<NativeFrame>, u32),
    ) -> bool {
        if self.trials >= TRIALS_MAX || self.steps >= STEPS_MAX {
            return false;
        }
        self.trials += 1;
        let (ip, sp, bp) = caller;
        let mut next = regs;
        next.called_with(ip, sp, bp);
        self.trail.clear(); // a guess may turn out otherwise the next time
        let (mark, guessed) = (self.frames.len(), self.guessed);
        self.guessed += 1;
        let outcome = self.run(next, false, deep + 1);
        if outcome == Outcome::Rooted {
            return true;
        }
        let tail = &self.frames[mark..];
        if (outcome, tail.len()) > (best.0, best.1.len()) {
            *best = (outcome, tail.to_vec(), self.guessed);
        }
        self.frames.truncate(mark);
        self.guessed = guessed;
        false
    }

    fn by_prologue(
        &mut self,
        regs: Registers,
        prologue: Option<Prologue>,
        deep: u32,
        best: &mut (Outcome, Vec<NativeFrame>, u32),
    ) -> bool {
        let Some(p) = prologue else {
            return false;
        };
        if p.frame_pointer {
            return self.by_frame_pointer(regs, deep, best);
        }
        let at = match p.moved {
            None => Some(regs.sp().wrapping_add(p.depth)),
            Some(moved) => self.old_sp(regs, moved).map(|sp| sp.wrapping_add(moved.depth)),
        };
        let Some(at) = at else {
            return false;
        };
        let Some(ip) = self.stack.read(at).filter(|&v| self.code.follows_call(v)) else {
            return false;
        };
        let bp = match p.bp_below {
            Some(below) => self.stack.read(at.wrapping_sub(below)),
            None => regs.bp(),
        };
        self.attempt((ip, at.wrapping_add(8), bp), regs, deep, best)
    }

    /// The stack pointer that a function had before it moved it far away.
    fn old_sp(&mut self, regs: Registers, moved: Moved) -> Option<u64> {
        let old = match moved.old {
            Old::Bp => regs.bp()?,
            Old::At(far) => self.stack.read(regs.sp().wrapping_add(far))?,
            Old::Elsewhere => return None,
        };
        let far = old.checked_sub(regs.sp())?;
        (far < MOVED_MAX && old % 8 == 0).then_some(old)
    }

    fn by_frame_pointer(
        &mut self,
        regs: Registers,
        deep: u32,
        best: &mut (Outcome, Vec<NativeFrame>, u32),
    ) -> bool {
        let sp = regs.sp();
        let Some(bp) = regs
            .bp()
            .filter(|&bp| bp % 8 == 0 && bp >= sp && bp - sp < SCAN_MAX)
        else {
            return false;
        };
        let (Some(saved), Some(ip)) = (self.stack.read(bp), self.stack.read(bp.wrapping_add(8))) else {
            return false;
        };
        self.code.follows_call(ip) && self.attempt((ip, bp.wrapping_add(16), Some(saved)), regs, deep, best)
    }

    fn by_scan(
        &mut self,
        regs: Registers,
        function: Option<u64>,
        deep: u32,
        best: &mut (Outcome, Vec<NativeFrame>, u32),
    ) -> bool {
        let sp = regs.sp() & !7;
        let mut doubtful = Vec::new();
        for at in (0..SCAN_MAX / 8).map_while(|i| sp.checked_add(i * 8)) {
            let Some(ip) = self.stack.read(at) else {
                break;
            };
            if !self.code.is_code(ip) || !self.code.follows_call(ip) {
                continue;
            }
            if self.called_another(ip, function) {
                doubtful.push((at, ip));
            } else if self.with_frame_pointers(regs, at, ip, deep, best) {
                return true;
            }
        }
        let doubtful = doubtful.into_iter().take(32);
        doubtful
            .into_iter()
            .any(|(at, ip)| self.with_frame_pointers(regs, at, ip, deep, best))
    }

    /// The call before `ip` is a direct one of some other function that has unwind data: what it left on the stack is
    /// rather old than a caller of ours (unless that function jumped to ours).
    fn called_another(&mut self, ip: u64, function: Option<u64>) -> bool {
        match (self.code.call_target(ip), function) {
            (Some(target), Some(start)) if target == start => false,
            (Some(target), _) => !self.code.is_stub(target) && self.code.rule(target).is_some(),
            (None, _) => false,
        }
    }

    fn with_frame_pointers(
        &mut self,
        regs: Registers,
        at: u64,
        ip: u64,
        deep: u32,
        best: &mut (Outcome, Vec<NativeFrame>, u32),
    ) -> bool {
        let above = |v: &u64| v % 8 == 0 && *v > at && *v - at < SCAN_MAX * 4;
        let kept = regs.bp().filter(above);
        let from = regs.sp().max(at.saturating_sub(SAVED_WORDS * 8));
        let words = (1..=SAVED_WORDS)
            .map(|i| at.wrapping_sub(i * 8))
            .take_while(|&a| a >= from);
        let saved: Vec<u64> = words
            .filter_map(|a| self.stack.read(a))
            .filter(above)
            .take(4)
            .collect();
        let mut candidates: Vec<Option<u64>> = kept.into_iter().chain(saved).map(Some).collect();
        candidates.dedup();
        candidates.push(None);
        candidates
            .into_iter()
            .any(|bp| self.attempt((ip, at.wrapping_add(8), bp), regs, deep, best))
    }
}
