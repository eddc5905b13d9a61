//! How long a sample takes to resolve, cold and warm, from the golden recordings: `speed [ROUNDS]`. A live process adds
//! one system call that checks all code objects of the sample (a few microseconds).

use std::time::Instant;

use unidle_scope::recording::Recording;
use unidle_scope::sample::Frames;

fn main() {
    let rounds: u32 = std::env::args()
        .nth(1)
        .and_then(|a| a.parse().ok())
        .unwrap_or(2000);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .expect("recordings")
        .flatten()
        .map(|e| e.path())
        .collect();
    paths.sort();
    for path in paths
        .into_iter()
        .filter(|p| p.extension().is_some_and(|e| e == "sample"))
    {
        let bytes = std::fs::read(&path).expect("a file");
        let recording = Recording::of_bytes(&bytes).expect("a recording");
        let mut frames = Frames::default();
        let mut target = recording.target().expect("its mappings");
        let sample = recording.sample();
        let began = Instant::now();
        let resolved = target.resolve(&sample, &mut frames);
        let cold = began.elapsed();
        let began = Instant::now();
        for _ in 0..rounds {
            target.resolve(&sample, &mut frames);
        }
        println!(
            "{:40} {:3} native {:3} python {:3} shown: cold {cold:9.1?} warm {:8.2?}",
            path.file_name().unwrap_or_default().to_string_lossy(),
            resolved.native,
            recording.python.len(),
            resolved.frames.len(),
            began.elapsed() / rounds
        );
    }
}
