//! Python frames of a thread that runs while they are read.

use crate::sample::PyFrameRaw;
use crate::target::Target;

/// Python frames of a thread that runs, in `first`: two reads that agree, else what they have in common from the root.
/// True: they never agreed.
pub fn agreed_frames(
    target: &mut Target,
    tid: u32,
    first: &mut Vec<PyFrameRaw>,
    second: &mut Vec<PyFrameRaw>,
) -> bool {
    target.python_frames(tid, None, first);
    for _ in 0..3 {
        target.python_frames(tid, None, second);
        if same_code(first, second) == first.len().max(second.len()) {
            std::mem::swap(first, second);
            return false;
        }
        std::mem::swap(first, second);
    }
    let common = same_code(first, second);
    first.drain(..first.len() - common);
    true
}

/// How many frames are the same, counted from the root; both lists are leaf first.
fn same_code(one: &[PyFrameRaw], other: &[PyFrameRaw]) -> usize {
    one.iter()
        .rev()
        .zip(other.iter().rev())
        .take_while(|(a, b)| a.code == b.code)
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(codes: &[u64]) -> Vec<PyFrameRaw> {
        codes
            .iter()
            .map(|&code| PyFrameRaw {
                code,
                ..PyFrameRaw::default()
            })
            .collect()
    }

    #[test]
    fn two_reads_have_their_root_in_common() {
        assert_eq!(same_code(&frames(&[9, 2, 1]), &frames(&[8, 2, 1])), 2);
        assert_eq!(same_code(&frames(&[3, 2, 1]), &frames(&[2, 1])), 2);
        assert_eq!(same_code(&frames(&[]), &frames(&[1])), 0);
    }
}
