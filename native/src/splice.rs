//! One stack of the native one and the Python one. Each activation of the interpreter's loop on the native stack runs
//! a chain of Python frames; these take the loop's place.

use crate::sample::{FrameId, PyFrameRaw};

/// What a native frame is to the splice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Plain,
    /// An activation of the interpreter's loop.
    Loop,
    /// A piece of the loop that is a function of its own (interpreters built with tail calls).
    LoopPart,
    /// A stub that stands for a Python function (`-X perf`): shown as that already.
    Stub,
}

/// A native frame as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Native {
    pub frame: FrameId,
    pub class: Class,
}

/// What is known of the native stack as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// It reaches the root.
    pub rooted: bool,
    /// The thread should have Python frames wherever there is a loop.
    pub python: bool,
    /// The Python chain was cut off at its root end.
    pub python_cut: bool,
}

/// The spliced stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spliced {
    /// Leaf first.
    pub frames: Vec<FrameId>,
    pub mismatch: bool,
    /// Part of the stack is missing, or stands where a part is missing.
    pub cut: bool,
}

/// The frames that one activation of the loop runs, leaf first. `ends`: the chain says that this is all of them.
#[derive(Debug, Default)]
struct Run {
    from: usize,
    to: usize,
    ends: bool,
}

/// `native` and `raw` leaf first; `shown` are the frames for `raw` (nothing: not shown).
pub fn splice(native: &[Native], raw: &[PyFrameRaw], shown: &[Option<FrameId>], reach: Reach) -> Spliced {
    let runs = runs_of(raw);
    let mut loops = loops_of(native);
    let cut = reach.python_cut || runs.last().is_some_and(|r| !r.ends);

    // The leaf may just enter or leave the loop: then the chain does not hold (or no longer holds) its frames.
    let at_the_edge = loops.len() == runs.len() + 1 && loops.first().is_some_and(|l| l.0 == 0);
    if at_the_edge && !cut && reach.rooted {
        loops.remove(0);
    }
    let fits = match (loops.len(), runs.len()) {
        (l, r) if l == r => true,
        // The native stack ends before the Python one does: what is left goes to the root end.
        (l, r) if l < r => !reach.rooted,
        (_, 0) => !reach.python,
        // The Python chain ends before the native one does.
        _ => cut,
    };
    let mut out = Spliced {
        mismatch: !fits,
        cut: cut || !reach.rooted,
        ..Spliced::default()
    };
    if !fits {
        out.frames = in_one_block(native, &loops, shown);
        return out;
    }
    out.frames = in_turn(native, &loops, &runs, shown);
    out
}

/// The native frames, with those of Python in the place of each loop, what is left of Python's at the root end.
fn in_turn(
    native: &[Native],
    loops: &[(usize, usize)],
    runs: &[Run],
    shown: &[Option<FrameId>],
) -> Vec<FrameId> {
    let python = |run: &Run| {
        shown
            .get(run.from..run.to)
            .unwrap_or_default()
            .iter()
            .flatten()
            .copied()
    };
    let mut frames = Vec::new();
    let mut next = 0;
    for (i, n) in native.iter().enumerate() {
        let here = loops.get(next).filter(|l| (l.0..=l.1).contains(&i));
        match (here, runs.get(next)) {
            (Some(&(_, last)), Some(run)) => {
                if i == last {
                    frames.extend(python(run));
                    next += 1;
                }
            }
            _ if n.class == Class::Stub => {}
            _ => frames.push(n.frame),
        }
    }
    for run in runs.iter().skip(next.max(loops.len().min(runs.len()))) {
        frames.extend(python(run));
    }
    frames
}

/// The chain cut into runs. 3.11: a run ends with the frame that the loop was entered with; 3.12 and later: before the
/// interpreter's own entry frame, which belongs to it.
fn runs_of(raw: &[PyFrameRaw]) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut run = Run::default();
    for (i, f) in raw.iter().enumerate() {
        run.to = i + 1;
        run.ends = f.ends_run();
        if run.ends {
            runs.push(std::mem::replace(
                &mut run,
                Run {
                    from: i + 1,
                    to: i + 1,
                    ends: false,
                },
            ));
        }
    }
    if run.to > run.from {
        runs.push(run);
    }
    runs
}

/// First and last frame of each activation of the loop, leaf first.
fn loops_of(native: &[Native]) -> Vec<(usize, usize)> {
    let mut loops: Vec<(usize, usize)> = Vec::new();
    let mut open = false;
    for (i, n) in native.iter().enumerate() {
        match (n.class, open) {
            // A part of the loop was called by the loop, or jumped to in its place.
            (Class::LoopPart | Class::Loop, true) => {
                if let Some(last) = loops.last_mut() {
                    last.1 = i;
                }
                open = n.class == Class::LoopPart;
            }
            (Class::LoopPart | Class::Loop, false) => {
                loops.push((i, i));
                open = n.class == Class::LoopPart;
            }
            _ => open = false,
        }
    }
    loops
}

/// All Python frames together, between the native frames below the innermost loop and those above the outermost.
fn in_one_block(native: &[Native], loops: &[(usize, usize)], shown: &[Option<FrameId>]) -> Vec<FrameId> {
    let (first, last) = match (loops.first(), loops.last()) {
        (Some(first), Some(last)) => (first.0, last.1 + 1),
        _ => (native.len(), native.len()),
    };
    let plain = |n: &[Native]| -> Vec<FrameId> {
        n.iter()
            .filter(|n| n.class != Class::Stub)
            .map(|n| n.frame)
            .collect()
    };
    let python: Vec<FrameId> = shown.iter().flatten().copied().collect();
    if python.is_empty() {
        return plain(native);
    }
    let mut out = plain(&native[..first]);
    out.extend(python);
    out.extend(plain(&native[last..]));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const REACH: Reach = Reach {
        rooted: true,
        python: true,
        python_cut: false,
    };

    /// Native frames from a word: `E` a loop, `t` a part of it, `s` a stub, numbers from 100 on.
    fn native(text: &str) -> Vec<Native> {
        let class = |c| match c {
            'E' => Class::Loop,
            't' => Class::LoopPart,
            's' => Class::Stub,
            _ => Class::Plain,
        };
        text.chars()
            .enumerate()
            .map(|(i, c)| Native {
                frame: 100 + i as u32,
                class: class(c),
            })
            .collect()
    }

    /// Python frames from a word: `f` a function, `e` a function that the loop was entered with, `|` an entry frame.
    fn python(text: &str) -> (Vec<PyFrameRaw>, Vec<Option<FrameId>>) {
        text.chars()
            .enumerate()
            .map(|(i, c)| {
                let raw = PyFrameRaw {
                    owner: if c == '|' { 3 } else { 0 },
                    flags: u32::from(c == 'e'),
                    ..PyFrameRaw::default()
                };
                (raw, (c != '|').then_some(i as u32))
            })
            .unzip()
    }

    fn spliced(n: &str, p: &str, reach: Reach) -> (Vec<FrameId>, bool) {
        let (raw, shown) = python(p);
        let s = splice(&native(n), &raw, &shown, reach);
        (s.frames, s.mismatch)
    }

    #[test]
    fn each_run_takes_the_place_of_its_loop() {
        assert_eq!(
            spliced("..E.E.", "fee", REACH),
            (vec![100, 101, 0, 1, 103, 2, 105], false)
        );
        assert_eq!(
            spliced("..E.E.", "ff|f|", REACH),
            (vec![100, 101, 0, 1, 103, 3, 105], false)
        );
    }

    #[test]
    fn a_leaf_that_enters_the_loop_has_no_frames_yet() {
        assert_eq!(spliced("E.E.", "fe", REACH), (vec![100, 101, 0, 1, 103], false));
        assert!(spliced(".E.E.", "fe", REACH).1);
    }

    #[test]
    fn a_native_stack_that_is_cut_off_keeps_the_python_frames_above() {
        let cut = Reach {
            rooted: false,
            ..REACH
        };
        assert_eq!(spliced(".E.", "fefe", cut), (vec![100, 0, 1, 102, 2, 3], false));
        assert!(spliced(".E.", "fefe", REACH).1);
    }

    #[test]
    fn a_python_chain_that_is_cut_off_leaves_the_outer_loops_native() {
        let cut = Reach {
            python_cut: true,
            ..REACH
        };
        assert_eq!(
            spliced(".E.E.E", "fef", cut),
            (vec![100, 0, 1, 102, 2, 104, 105], false)
        );
        assert_eq!(spliced(".E.E", "ff", REACH), (vec![100, 0, 1, 102, 103], false));
    }

    #[test]
    fn stacks_that_do_not_fit_are_counted_and_the_python_frames_stand_together() {
        assert_eq!(
            spliced("..E.E.E..", "fe", REACH),
            (vec![100, 101, 0, 1, 107, 108], true)
        );
        assert_eq!(spliced("..", "fe", REACH), (vec![100, 101, 0, 1], true));
        assert_eq!(spliced(".E.", "", REACH), (vec![100, 101, 102], true));
        let without = Reach {
            python: false,
            ..REACH
        };
        assert_eq!(spliced(".E.", "", without), (vec![100, 101, 102], false));
    }

    #[test]
    fn parts_of_a_loop_are_one_loop_and_stubs_are_not_shown() {
        assert_eq!(
            spliced(".tE.tt.", "f|f|", REACH),
            (vec![100, 0, 103, 2, 106], false)
        );
        assert_eq!(spliced(".EsEs.", "f|f|", REACH), (vec![100, 0, 2, 105], false));
        // Two loops next to each other are two.
        assert_eq!(spliced(".EE.", "f|f|", REACH), (vec![100, 0, 2, 103], false));
    }
}
