//! Symbols of a file that was stripped of them: in a file of their own (under `/usr/lib/debug` by build id, or by the
//! name that `.gnu_debuglink` gives), or compressed in the file itself (`.gnu_debugdata`).

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::roots::open_below;
use crate::elf::{Elf, FileSource, Source};

const SHT_SYMTAB: u32 = 2;
/// Bytes of a compressed symbol table, and of what comes out of it.
const PACKED_MAX: u64 = 16 << 20;
const UNPACKED_MAX: u64 = 64 << 20;
/// KiB that unpacking may take: what `xz -9` asks for.
const UNPACK_KIB: u32 = 66 << 10;
/// Larger files are not summed up.
const SUMMED_MAX: u64 = 256 << 20;
const LINK_MAX: u64 = 512;

/// The file with the symbols of a stripped one; nothing for one that has all of them. `path` is the file's own, below each
/// of `roots`: that of the process, and ours.
pub fn find(elf: &Elf, path: &str, roots: &[PathBuf]) -> Option<Elf> {
    if has_symbols(elf) {
        return None;
    }
    let id = elf.build_id();
    let link = Link::of(elf);
    let mut places: Vec<PathBuf> = id.iter().filter_map(|id| place_of_id(id)).collect();
    places.extend(link.iter().flat_map(|l| l.places(path)));
    let fits = |other: &Elf| match (&id, other.build_id()) {
        (Some(id), Some(of)) => *id == of,
        _ => link.as_ref().is_some_and(|l| sum(&*other.source) == Some(l.sum)),
    };
    roots
        .iter()
        .flat_map(|root| places.iter().map(move |place| (root, place)))
        .find_map(|(root, place)| {
            let source = FileSource::new(open_below(root, place)?).ok()?;
            let other = Elf::parse(Arc::new(source))?;
            (other.machine == elf.machine && has_symbols(&other) && fits(&other)).then_some(other)
        })
}

fn has_symbols(elf: &Elf) -> bool {
    elf.sections.iter().any(|s| s.kind == SHT_SYMTAB && s.size > 0)
}

/// `/usr/lib/debug/.build-id/12/3456.debug`
fn place_of_id(id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first().filter(|(_, rest)| !rest.is_empty())?;
    let rest: String = rest.iter().map(|b| format!("{b:02x}")).collect();
    Some(PathBuf::from(format!(
        "/usr/lib/debug/.build-id/{first:02x}/{rest}.debug"
    )))
}

/// What `.gnu_debuglink` says.
struct Link {
    name: String,
    sum: u32,
}

impl Link {
    fn of(elf: &Elf) -> Option<Link> {
        let section = elf.section(".gnu_debuglink")?;
        let mut b = vec![0u8; section.size.min(LINK_MAX) as usize];
        if !elf.source.read_at(section.offset, &mut b) {
            return None;
        }
        let end = b.iter().position(|&c| c == 0)?;
        let at = (end + 4) & !3;
        let name = std::str::from_utf8(b.get(..end)?).ok()?;
        let plain = !name.is_empty() && !name.contains('/') && name != "..";
        plain.then_some(Link {
            name: name.to_owned(),
            sum: u32::from_le_bytes(b.get(at..at + 4)?.try_into().ok()?),
        })
    }

    fn places(&self, path: &str) -> Vec<PathBuf> {
        let folder = Path::new(path).parent().unwrap_or(Path::new("/"));
        let below =
            |folder: &Path| Path::new("/usr/lib/debug").join(folder.strip_prefix("/").unwrap_or(folder));
        let mut places = vec![
            folder.join(&self.name),
            folder.join(".debug").join(&self.name),
            below(folder).join(&self.name),
        ];
        // Packages name their files as they were before /lib and /bin moved into /usr.
        if let Ok(short) = folder.strip_prefix("/usr") {
            places.push(below(short).join(&self.name));
        }
        places
    }
}

/// The checksum that `.gnu_debuglink` holds: CRC-32 of the whole file.
fn sum(source: &dyn Source) -> Option<u32> {
    let len = source.len();
    if len > SUMMED_MAX {
        return None;
    }
    let mut table = [0u32; 256];
    for (i, entry) in table.iter_mut().enumerate() {
        *entry = (0..8).fold(i as u32, |c, _| (c >> 1) ^ (0xedb8_8320 & (c & 1).wrapping_neg()));
    }
    let mut piece = vec![0u8; 1 << 20];
    let (mut crc, mut at) = (u32::MAX, 0);
    while at < len {
        let n = (len - at).min(piece.len() as u64) as usize;
        let piece = piece.get_mut(..n)?;
        if !source.read_bulk(at, piece) {
            return None;
        }
        crc = piece
            .iter()
            .fold(crc, |c, &b| (c >> 8) ^ table[((c ^ u32::from(b)) & 255) as usize]);
        at += n as u64;
    }
    Some(!crc)
}

/// The symbol table that distributions keep compressed in a stripped file.
pub fn unpacked(elf: &Elf) -> Option<Elf> {
    if has_symbols(elf) {
        return None;
    }
    let section = elf.section(".gnu_debugdata").filter(|s| s.size <= PACKED_MAX)?;
    if section.size > elf.source.len() {
        return None;
    }
    let mut packed = vec![0u8; section.size as usize];
    if !elf.source.read_bulk(section.offset, &mut packed) {
        return None;
    }
    let mut bytes = Vec::new();
    let reader = lzma_rust2::XzReader::new_mem_limit(&packed[..], false, UNPACK_KIB);
    reader.take(UNPACKED_MAX).read_to_end(&mut bytes).ok()?;
    bytes.shrink_to_fit();
    Elf::parse(Arc::new(bytes)).filter(has_symbols)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_that_everybody_uses() {
        assert_eq!(sum(&b"123456789".to_vec()), Some(0xcbf4_3926));
        assert_eq!(sum(&Vec::new()), Some(0));
    }

    #[test]
    fn a_link_is_looked_for_beside_the_file_and_under_usr_lib_debug() {
        let link = Link {
            name: "python3.debug".into(),
            sum: 0,
        };
        let places: Vec<String> = link
            .places("/usr/bin/python3")
            .iter()
            .map(|p| p.display().to_string())
            .collect();
        assert_eq!(
            places,
            [
                "/usr/bin/python3.debug",
                "/usr/bin/.debug/python3.debug",
                "/usr/lib/debug/usr/bin/python3.debug",
                "/usr/lib/debug/bin/python3.debug",
            ]
        );
        let id = place_of_id(&[0x12, 0x34, 0xab]).map(|p| p.display().to_string());
        assert_eq!(id.as_deref(), Some("/usr/lib/debug/.build-id/12/34ab.debug"));
        assert_eq!(place_of_id(&[1]), None);
    }
}
