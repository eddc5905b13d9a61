//! Builds `inject/kernels.c`, the library that the CUDA driver loads into a training: it travels as bytes in the module,
//! so that no machine needs a compiler to use it. The compiler is the one that Rust links with.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = "inject/kernels.c";
const OPTIONS: [&str; 12] = [
    "-std=gnu11",
    "-O2",
    "-Wall",
    "-Wextra",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-pthread",
    "-s",
    "-Wl,-z,defs",
    "-Wl,-z,nodelete", // the driver may let go of it while its thread runs
    "-Wl,-soname,libunidle_kernels.so",
];

fn main() {
    println!("cargo:rerun-if-changed={SOURCE}");
    println!("cargo:rerun-if-env-changed=CC");
    let built =
        PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("libunidle_kernels.so");
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let done = Command::new(&compiler)
        .args(OPTIONS)
        .arg("-o")
        .arg(&built)
        .arg(SOURCE)
        .status();
    match done {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{}: {SOURCE} was not built: {status}", compiler.to_string_lossy()),
        Err(error) => panic!(
            "{}: {SOURCE} was not built: {error}; install a C compiler, or name one by CC",
            compiler.to_string_lossy()
        ),
    }
}
