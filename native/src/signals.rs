//! Signals wait while the kernel checks our programs: with one pending it gives up (`EAGAIN`).

use std::mem::MaybeUninit;

/// Until it is dropped this thread takes no signals.
pub struct Held(libc::sigset_t);

impl Held {
    pub fn new() -> Held {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: both are sets that live for the calls; the second is written by the call that blocks the first.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
            Held(before.assume_init())
        }
    }
}

impl Default for Held {
    fn default() -> Held {
        Held::new()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: the set that was there before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_blocked() -> bool {
        let mut now = MaybeUninit::uninit();
        // SAFETY: a set that the call writes.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), now.as_mut_ptr());
            libc::sigismember(now.as_ptr(), libc::SIGINT) == 1
        }
    }

    #[test]
    fn signals_are_held_until_it_is_dropped() {
        assert!(!is_blocked());
        let held = Held::new();
        assert!(is_blocked());
        drop(held);
        assert!(!is_blocked());
    }
}
