//! Recorded samples: no process, no files and no rights are needed to resolve them.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use unidle_scope::hostile;
use unidle_scope::recording::Recording;
use unidle_scope::sample::{Frames, Kind};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn recordings() -> Vec<(PathBuf, Vec<u8>)> {
    let list = fs::read_dir(folder()).expect("folder of recordings");
    let mut found: Vec<_> = list
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == "sample"))
        .map(|p| (p.clone(), fs::read(p).expect("recording")))
        .collect();
    found.sort();
    assert!(found.len() >= 8, "recordings of four versions of Python");
    found
}

/// The stack, root first, one line a frame, after a line of what is known of it.
fn text(recording: &Recording) -> String {
    let mut frames = Frames::default();
    let r = recording.play(&mut frames).expect("mappings");
    let mut out = format!(
        "rooted {} mismatch {} complete {} native {} unsymbolised {}\n",
        r.rooted, r.mismatch, r.complete, r.native, r.unsymbolised
    );
    for f in r.frames.iter().filter_map(|&id| frames.get(id)) {
        out += &match f.kind {
            Kind::Python => format!("{} {}:{}\n", f.function, f.file, f.line),
            _ => format!("  {} [{}]\n", f.function, f.module),
        };
    }
    out
}

#[test]
fn recordings_give_the_stacks_that_they_gave_when_they_were_taken() {
    for (path, bytes) in recordings() {
        let recording = Recording::of_bytes(&bytes).expect("a recording");
        let now = text(&recording);
        let expected = path.with_extension("txt");
        if std::env::var_os("UNIDLE_GOLDEN_WRITE").is_some() {
            fs::write(&expected, &now).expect("written");
        }
        assert_eq!(
            now,
            fs::read_to_string(&expected).expect("its stack"),
            "{}",
            path.display()
        );
    }
}

#[test]
fn a_recording_is_written_as_it_was_read() {
    for (_, bytes) in recordings() {
        let recording = Recording::of_bytes(&bytes).expect("a recording");
        assert!(recording.to_bytes() == bytes);
    }
}

#[test]
fn a_recording_that_is_cut_short_is_refused() {
    let (_, bytes) = recordings().swap_remove(0);
    for keep in (0..bytes.len()).step_by(997) {
        assert_eq!(Recording::of_bytes(&bytes[..keep]), None);
    }
}

#[test]
fn a_stack_that_was_copied_in_part_is_not_rooted_and_keeps_its_python_frames() {
    for (path, bytes) in recordings() {
        let mut recording = Recording::of_bytes(&bytes).expect("a recording");
        let mut frames = Frames::default();
        let whole = recording.play(&mut frames).expect("mappings");
        recording.stack.truncate((recording.stack.len() / 2) & !7);
        let half = recording.play(&mut frames).expect("mappings");
        assert!(
            !half.rooted && !half.complete && half.native < whole.native,
            "{}",
            path.display()
        );
        assert!(!half.mismatch, "{}", path.display());
        let python = |r: &unidle_scope::sample::Resolved| {
            let of_kind = |id: &&u32| frames.get(**id).is_some_and(|f| f.kind == Kind::Python);
            r.frames.iter().filter(of_kind).copied().collect::<Vec<_>>()
        };
        assert_eq!(python(&half), python(&whole), "{}", path.display());
    }
}

/// A small generator of numbers that is the same on each run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below.max(1) as u64) as usize
    }
}

#[test]
fn a_stack_that_is_seen_again_with_a_word_changed_comes_out_as_if_seen_for_the_first_time() {
    let mut numbers = Numbers(0x51_7cc1_b727_220a);
    let (mut same, mut all) = (0, 0);
    for (path, bytes) in recordings() {
        let recording = Recording::of_bytes(&bytes).expect("a recording");
        let mut frames = Frames::default();
        let mut target = recording.target().expect("mappings");
        let first = target.resolve(&recording.sample(), &mut frames);
        let words = recording.stack.len() / 8;
        for round in 0..24 {
            let mut changed = recording.clone();
            // The first round changes nothing; half of the others change what is near the leaf, where most of a stack is.
            if round > 0 {
                let at = numbers.next(if round % 2 == 0 { words } else { words.min(256) }) * 8;
                let word = match round % 3 {
                    0 => 0,
                    1 => recording.regs.ip,
                    _ => numbers.next(usize::MAX) as u64,
                };
                changed.stack[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            let again = target.resolve(&changed.sample(), &mut frames);
            let fresh = changed.play(&mut frames).expect("mappings");
            assert_eq!(again, fresh, "{} round {round}", path.display());
            same += usize::from(again == first);
            all += 1;
        }
        let walked = target.walk(&recording.sample());
        let again = target.walk(&recording.sample());
        assert_eq!(again.frames, walked.frames);
        if walked.rooted && walked.guessed == 0 {
            assert_eq!(again.same, again.frames.len(), "{}", path.display());
        }
    }
    assert!(same < all, "the changes change stacks");
}

#[test]
fn recordings_with_flipped_bytes_neither_panic_nor_go_on_for_long() {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for (path, bytes) in recordings() {
        for round in 0..40 {
            let mut bad = bytes.clone();
            for _ in 0..1 + round * 4 {
                let at = numbers.next(bad.len());
                bad[at] = numbers.next(256) as u8;
            }
            let began = Instant::now();
            hostile::sample(&bad);
            assert!(began.elapsed() < Duration::from_secs(20), "{}", path.display());
        }
    }
}

#[test]
fn own_program_with_flipped_bytes_is_read_without_panic() {
    let whole = fs::read(std::env::current_exe().expect("own path")).expect("own program");
    let mut numbers = Numbers(7);
    for _ in 0..20 {
        let mut bad = whole.clone();
        for _ in 0..20 {
            let at = numbers.next(4096.min(bad.len()));
            bad[at] = numbers.next(256) as u8;
        }
        let tail = bad.len() - 4096;
        let at = tail + numbers.next(4096);
        bad[at] ^= 0x41;
        hostile::elf(&bad);
    }
}

#[test]
fn the_corpus_of_the_fuzzer_goes_through_its_entries() {
    type Entry = (&'static str, fn(&[u8]));
    let entries: [Entry; 4] = [
        ("elf", hostile::elf),
        ("eh_frame", hostile::eh_frame),
        ("perf_map", hostile::perf_map),
        ("sample", hostile::sample),
    ];
    for (name, entry) in entries {
        let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("fuzz/seeds")
            .join(name);
        let mut n = 0;
        for file in fs::read_dir(&corpus).expect("seeds").flatten() {
            entry(&fs::read(file.path()).expect("seed"));
            n += 1;
        }
        assert!(n > 0, "{}", corpus.display());
    }
}
