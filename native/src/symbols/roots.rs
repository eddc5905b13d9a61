//! Files as another process sees them: below its root, whatever a link there says.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Links lead to where the process would be led: an absolute one begins at its root, and none leads out of it.
const RESOLVE_IN_ROOT: u64 = 0x10;

/// `struct open_how` of the kernel.
#[repr(C)]
struct How {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// The root of a process.
pub fn root_of(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/root"))
}

/// Opens the plain file at an absolute `path` below `root`. A pipe or a device that lies there is not waited for.
pub fn open_below(root: &Path, path: &Path) -> Option<File> {
    plain(open_in_root(root, path, 0)?)
}

/// As [`open_below`], but nothing where a link lies at `path` itself: who made the link may not be who made the file.
pub fn open_own_below(root: &Path, path: &Path) -> Option<File> {
    plain(open_in_root(root, path, libc::O_NOFOLLOW)?)
}

fn plain(file: File) -> Option<File> {
    file.metadata().ok()?.is_file().then_some(file)
}

fn open_in_root(root: &Path, path: &Path, more: libc::c_int) -> Option<File> {
    let relative = path.strip_prefix("/").unwrap_or(path);
    let mut options = File::options();
    let directory = options
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
        .open(root)
        .ok()?;
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY | more;
    let how = How {
        flags: flags as u64,
        mode: 0,
        resolve: RESOLVE_IN_ROOT,
    };
    let name = CString::new(relative.as_os_str().as_bytes()).ok()?;
    // SAFETY: the descriptor is open, the name ends with a zero, and `how` is as large as the call is told.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            directory.as_raw_fd(),
            name.as_ptr(),
            &how,
            std::mem::size_of::<How>(),
        )
    };
    if let Ok(fd @ 0..) = i32::try_from(fd) {
        // SAFETY: the call has just opened it, and nobody else owns it.
        return Some(unsafe { File::from_raw_fd(fd) });
    }
    // Kernels before 5.6 do not have the call, and some sandboxes refuse it.
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::ENOSYS | libc::EPERM) => File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | more)
            .open(root.join(relative))
            .ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn links_begin_at_the_root_and_what_is_no_file_is_not_opened() {
        let root = std::env::temp_dir().join(format!("unidle-roots-{}", std::process::id()));
        fs::create_dir_all(root.join("etc")).expect("folder");
        fs::write(root.join("etc/inner"), b"inner").expect("file");
        for (to, name) in [
            ("/etc/inner", "absolute"),
            ("../../../../etc/inner", "upwards"),
            ("/etc/passwd", "outside"),
        ] {
            std::os::unix::fs::symlink(to, root.join(name)).expect("link");
        }
        let opened = |path: &str| open_below(&root, Path::new(path)).is_some();
        let own = |path: &str| open_own_below(&root, Path::new(path)).is_some();
        let own = [own("/etc/inner"), own("/absolute")];
        let all = [
            opened("/etc/inner"),
            opened("/absolute"),
            opened("/upwards"),
            opened("/outside"),
            opened("/etc"),
            opened("/nothing"),
        ];
        fs::remove_dir_all(&root).expect("removed");
        assert_eq!(all, [true, true, true, false, false, false]);
        assert_eq!(own, [true, false]);
        assert!(open_below(Path::new("/"), Path::new("/dev/null")).is_none());
    }
}
