//! A sample in a file, with everything that was read to resolve it: mappings, pieces of memory and of files, symbols.
//! Played back it gives the same stack without the process, without its files, and without any right.

use std::io;
use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;

use crate::elf::Source;
use crate::image::{AskedSymbols, Image};
use crate::maps::Mapping;
use crate::memory::{Memory, RecordedMemory};
use crate::sample::{Frames, Outer, PyFrameRaw, RawSample, Regs, Resolved};
use crate::target::Target;
use crate::world::{Live, World};

const MAGIC: &[u8] = b"unidle sample 1\n";

/// What was read of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedFile {
    pub name: String,
    pub len: u64,
    /// By offset.
    pub pieces: RecordedMemory,
    pub told: AskedSymbols,
}

/// A sample and all that belongs to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    pub regs: Regs,
    pub stack: Vec<u8>,
    pub python: Vec<PyFrameRaw>,
    pub maps: Vec<u8>,
    pub perf_map: Vec<u8>,
    pub memory: RecordedMemory,
    /// By the start of the mapping that led to the file.
    pub files: Vec<(u64, RecordedFile)>,
}

impl Recording {
    /// Resolves a sample of a process that lives, and keeps what that took.
    pub fn take(sample: &RawSample<'_>, frames: &mut Frames) -> io::Result<(Recording, Resolved)> {
        let kept = Arc::new(Kept::default());
        let world = Recorder {
            memory: KeptMemory {
                live: Live::new(sample.pid),
                kept: kept.clone(),
            },
            kept: kept.clone(),
        };
        let mut target = Target::of_world(sample.pid, Box::new(world))?;
        let resolved = target.resolve(sample, frames);
        let used = target.walk(sample).stack_used.min(sample.stack.len());
        drop(target);
        let files = lock(&kept.files);
        let mut files: Vec<(u64, RecordedFile)> = files
            .iter()
            .map(|(start, (image, source))| {
                let file = RecordedFile {
                    name: image.name.clone(),
                    len: source.len(),
                    pieces: lock(&source.pieces).clone(),
                    told: image.told(),
                };
                (*start, file)
            })
            .collect();
        files.sort_by_key(|f| f.0);
        let recording = Recording {
            regs: sample.regs,
            stack: sample.stack[..used].to_vec(),
            python: sample.python.to_vec(),
            maps: lock(&kept.maps).clone(),
            perf_map: lock(&kept.perf_map).clone(),
            memory: lock(&kept.memory).clone(),
            files,
        };
        Ok((recording, resolved))
    }

    /// The stack of the sample. Errors: the mappings are missing.
    pub fn play(&self, frames: &mut Frames) -> io::Result<Resolved> {
        Ok(self.target()?.resolve(&self.sample(), frames))
    }

    /// The recorded process, for [`Recording::sample`].
    pub fn target(&self) -> io::Result<Target> {
        Target::of_world(1, Box::new(Player(self.clone())))
    }

    pub fn sample(&self) -> RawSample<'_> {
        RawSample {
            pid: 1,
            tid: 1,
            time_ns: 0,
            regs: self.regs,
            stack: &self.stack,
            outer: Outer::default(),
            python_known: true,
            python: &self.python,
            kernel: &[],
            live: false,
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer(MAGIC.to_vec());
        for v in [self.regs.ip, self.regs.sp, self.regs.bp, self.regs.lr] {
            w.u64(v);
        }
        w.bytes(&self.stack);
        w.u64(self.python.len() as u64);
        for f in &self.python {
            w.u64(f.code);
            w.u64(f.instr);
            w.u64(u64::from(f.owner) | u64::from(f.flags) << 32);
        }
        w.bytes(&self.maps);
        w.bytes(&self.perf_map);
        w.pieces(&self.memory);
        w.u64(self.files.len() as u64);
        for (start, file) in &self.files {
            w.u64(*start);
            w.bytes(file.name.as_bytes());
            w.u64(file.len);
            w.pieces(&file.pieces);
            for list in [&file.told.functions, &file.told.asked] {
                w.u64(list.len() as u64);
                for (start, size, name) in list {
                    w.u64(*start);
                    w.u64(*size);
                    w.bytes(name.as_bytes());
                }
            }
        }
        w.0
    }

    /// Nothing for what [`Recording::to_bytes`] does not write.
    pub fn of_bytes(b: &[u8]) -> Option<Recording> {
        let mut r = Reader(b.strip_prefix(MAGIC)?);
        let regs = Regs {
            ip: r.u64()?,
            sp: r.u64()?,
            bp: r.u64()?,
            lr: r.u64()?,
        };
        let stack = r.bytes()?.to_vec();
        let python = r.list(24, |r| {
            let (code, instr, rest) = (r.u64()?, r.u64()?, r.u64()?);
            Some(PyFrameRaw {
                code,
                instr,
                owner: rest as u32,
                flags: (rest >> 32) as u32,
            })
        })?;
        let (maps, perf_map) = (r.bytes()?.to_vec(), r.bytes()?.to_vec());
        let memory = r.pieces()?;
        let files = r.list(24, |r| {
            let start = r.u64()?;
            let name = r.text()?;
            let (len, pieces) = (r.u64()?, r.pieces()?);
            let told = AskedSymbols {
                functions: r.symbols()?,
                asked: r.symbols()?,
            };
            Some((
                start,
                RecordedFile {
                    name,
                    len,
                    pieces,
                    told,
                },
            ))
        })?;
        Some(Recording {
            regs,
            stack,
            python,
            maps,
            perf_map,
            memory,
            files,
        })
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn u64(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }

    fn bytes(&mut self, b: &[u8]) {
        self.u64(b.len() as u64);
        self.0.extend_from_slice(b);
    }

    fn pieces(&mut self, m: &RecordedMemory) {
        self.u64(m.pieces().len() as u64);
        for (at, b) in m.pieces() {
            self.u64(*at);
            self.bytes(b);
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn text(&mut self) -> Option<String> {
        Some(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    fn symbols(&mut self) -> Option<Vec<(u64, u64, String)>> {
        self.list(24, |r| Some((r.u64()?, r.u64()?, r.text()?)))
    }

    fn u64(&mut self) -> Option<u64> {
        let (head, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*head))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let n = usize::try_from(self.u64()?).ok()?;
        let b = self.0.get(..n)?;
        self.0 = self.0.get(n..)?;
        Some(b)
    }

    /// A list whose entries take at least `least` bytes each: so a count cannot promise more than there is.
    fn list<T>(&mut self, least: usize, mut one: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let n = usize::try_from(self.u64()?).ok()?;
        if n > self.0.len() / least {
            return None;
        }
        (0..n).map(|_| one(self)).collect()
    }

    fn pieces(&mut self) -> Option<RecordedMemory> {
        RecordedMemory::of_pieces(self.list(16, |r| Some((r.u64()?, r.bytes()?.to_vec())))?)
    }
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}

type Files = FxHashMap<u64, (Arc<Image>, Arc<KeptSource>)>;

#[derive(Default)]
struct Kept {
    memory: Mutex<RecordedMemory>,
    maps: Mutex<Vec<u8>>,
    perf_map: Mutex<Vec<u8>>,
    files: Mutex<Files>,
}

/// A process that lives, of which all that is read is kept.
struct Recorder {
    memory: KeptMemory,
    kept: Arc<Kept>,
}

struct KeptMemory {
    live: Live,
    kept: Arc<Kept>,
}

impl Memory for KeptMemory {
    fn read(&self, addr: u64, into: &mut [u8]) -> bool {
        let read = self.live.memory().read(addr, into);
        if read {
            lock(&self.kept.memory).put(addr, into);
        }
        read
    }
}

struct KeptSource {
    file: Arc<dyn Source>,
    pieces: Mutex<RecordedMemory>,
}

impl Source for KeptSource {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> bool {
        let read = self.file.read_at(offset, into);
        if read {
            lock(&self.pieces).put(offset, into);
        }
        read
    }
}

impl World for Recorder {
    fn memory(&self) -> &dyn Memory {
        &self.memory
    }

    fn maps(&self) -> io::Result<Vec<u8>> {
        let text = self.memory.live.maps()?;
        *lock(&self.kept.maps) = text.clone();
        Ok(text)
    }

    fn image(&self, mapping: &Mapping) -> Option<Arc<Image>> {
        let mut files = lock(&self.kept.files);
        if let Some((image, _)) = files.get(&mapping.start) {
            return Some(image.clone());
        }
        let plain = self.memory.live.image(mapping)?;
        let source = Arc::new(KeptSource {
            file: plain.elf.source.clone(),
            pieces: Mutex::default(),
        });
        let image = Arc::new(Image::telling(plain, source.clone())?);
        files.insert(mapping.start, (image.clone(), source));
        Some(image)
    }

    fn perf_map(&self, known: u64) -> Option<(u64, Vec<u8>)> {
        let found = self.memory.live.perf_map(known)?;
        *lock(&self.kept.perf_map) = found.1.clone();
        Some(found)
    }

    fn inner_tid(&self, tid: u32) -> Option<u32> {
        self.memory.live.inner_tid(tid)
    }

    fn kernel_function(&self, addr: u64) -> Option<(String, String)> {
        self.memory.live.kernel_function(addr)
    }
}

/// A recording as a process.
struct Player(Recording);

struct RecordedSource {
    len: u64,
    pieces: RecordedMemory,
}

impl Source for RecordedSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> bool {
        self.pieces.read(offset, into)
    }
}

impl World for Player {
    fn memory(&self) -> &dyn Memory {
        &self.0.memory
    }

    fn maps(&self) -> io::Result<Vec<u8>> {
        Ok(self.0.maps.clone())
    }

    fn image(&self, mapping: &Mapping) -> Option<Arc<Image>> {
        let (_, file) = self.0.files.iter().find(|f| f.0 == mapping.start)?;
        let source = Arc::new(RecordedSource {
            len: file.len,
            pieces: file.pieces.clone(),
        });
        Image::told_before(&file.name, source, file.told.clone()).map(Arc::new)
    }

    fn perf_map(&self, known: u64) -> Option<(u64, Vec<u8>)> {
        let mark = self.0.perf_map.len() as u64;
        (mark != known).then(|| (mark, self.0.perf_map.clone()))
    }

    fn inner_tid(&self, tid: u32) -> Option<u32> {
        Some(tid)
    }

    fn kernel_function(&self, _addr: u64) -> Option<(String, String)> {
        None
    }
}
