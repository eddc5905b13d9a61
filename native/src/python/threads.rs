//! From a thread to its Python frames, read from outside.

use super::config::PyConfig;
use crate::memory::Memory;
use crate::sample::PyFrameRaw;

const INTERPRETERS_MAX: usize = 64;
const THREADS_MAX: usize = 4096;

/// Which thread is looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WantedThread {
    /// `pthread_self()`: the base of the fs segment on x86-64. Preferred: it is the same in each pid namespace.
    pub thread_id: Option<u64>,
    /// The thread's number in its own pid namespace.
    pub native_id: Option<u32>,
}

/// Address of a thread's state. Of several (one in each interpreter) the one with a frame.
pub fn find_thread(memory: &dyn Memory, c: &PyConfig, wanted: WantedThread) -> Option<u64> {
    let mut idle = None;
    let mut interpreter = memory.u64(c.runtime.wrapping_add(c.off_interp_head.into()))?;
    for _ in 0..INTERPRETERS_MAX {
        if interpreter == 0 {
            break;
        }
        let mut state = memory.u64(interpreter.wrapping_add(c.off_threads_head.into()))?;
        for _ in 0..THREADS_MAX {
            if state == 0 {
                break;
            }
            if is_thread(memory, c, state, wanted) {
                match current_frame(memory, c, state) {
                    Some(frame) if frame != 0 => return Some(state),
                    _ => idle = idle.or(Some(state)),
                }
            }
            state = memory.u64(state.wrapping_add(c.off_ts_next.into()))?;
        }
        interpreter = memory.u64(interpreter.wrapping_add(c.off_interp_next.into()))?;
    }
    idle
}

/// Is this the state of that thread?
pub fn is_thread(memory: &dyn Memory, c: &PyConfig, state: u64, wanted: WantedThread) -> bool {
    let word = |offset: u32| memory.u64(state.wrapping_add(offset.into()));
    match wanted {
        WantedThread {
            thread_id: Some(id), ..
        } => word(c.off_ts_thread_id) == Some(id),
        WantedThread {
            native_id: Some(id), ..
        } => word(c.off_ts_native_id) == Some(id.into()),
        _ => false,
    }
}

/// Has the interpreter been set up, with one thread at least?
pub fn is_running(memory: &dyn Memory, c: &PyConfig) -> bool {
    let head = memory.u64(c.runtime.wrapping_add(c.off_interp_head.into()));
    let first = head
        .filter(|&i| i != 0)
        .and_then(|i| memory.u64(i.wrapping_add(c.off_threads_head.into())));
    first.is_some_and(|t| t != 0)
}

fn current_frame(memory: &dyn Memory, c: &PyConfig, state: u64) -> Option<u64> {
    let frame = memory.u64(state.wrapping_add(c.off_ts_frame.into()))?;
    if c.flags & PyConfig::CFRAME == 0 || frame == 0 {
        return Some(frame);
    }
    memory.u64(frame.wrapping_add(c.off_cframe_frame.into()))
}

/// The current frame of the C frame before the innermost one (3.11, 3.12).
fn frame_before(memory: &dyn Memory, c: &PyConfig, state: u64) -> Option<u64> {
    let word = |at: u64, offset: u32| memory.u64(at.wrapping_add(offset.into()));
    let innermost = word(state, c.off_ts_frame)?;
    match word(innermost, c.off_cframe_previous)? {
        0 => Some(0),
        before => word(before, c.off_cframe_frame),
    }
}

/// Frames of a thread, leaf first, at most [`PyConfig::FRAMES_MAX`].
pub fn frames(memory: &dyn Memory, c: &PyConfig, state: u64, into: &mut Vec<PyFrameRaw>) {
    into.clear();
    let mut at = current_frame(memory, c, state).unwrap_or(0);
    // The loop links its C frame before it sets the current frame in it: what stands there is checked once, where the
    // innermost run ends.
    let mut expected = match c.flags & PyConfig::CFRAME {
        0 => None,
        _ => frame_before(memory, c, state),
    };
    loop {
        let next = if at == 0 { None } else { frame_at(memory, c, at) };
        if let Some((frame, previous)) = next {
            into.push(frame);
            at = previous;
        }
        let ends = next.is_none_or(|(frame, _)| frame.ends_run());
        if let (true, Some(before)) = (ends, expected) {
            expected = None;
            if next.is_none() || at != before {
                into.clear();
                at = before;
                continue;
            }
        }
        if next.is_none() || at == 0 || into.len() >= PyConfig::FRAMES_MAX {
            break;
        }
    }
}

/// A frame, and the address of the one before it.
fn frame_at(memory: &dyn Memory, c: &PyConfig, at: u64) -> Option<(PyFrameRaw, u64)> {
    // One read a frame: all fields lie within 88 bytes, within 72 in 3.11 and 3.12.
    let mut b = [0u8; 88];
    if !memory.read(at, &mut b) && !memory.read(at, &mut b[..72]) {
        return None;
    }
    let word = |offset: u32| {
        let piece = b.get(offset as usize..offset as usize + 8)?;
        Some(u64::from_le_bytes(piece.try_into().ok()?))
    };
    let byte = |offset: u32| b.get(offset as usize).copied();
    let entry = c.flags & PyConfig::IS_ENTRY != 0 && byte(c.off_f_is_entry) == Some(1);
    let frame = PyFrameRaw {
        code: word(c.off_f_executable)? & !7,
        instr: word(c.off_f_instr)?,
        owner: byte(c.off_f_owner)?.into(),
        flags: u32::from(entry) * PyFrameRaw::IS_ENTRY,
    };
    Some((frame, word(c.off_f_previous)?))
}
