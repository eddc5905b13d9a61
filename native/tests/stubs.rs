//! Names of the linker's stubs, beside those that the system's disassembler gives.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use unidle_scope::image::Image;

const SOURCE: &str = "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
    void *make(size_t n) { return memset(malloc(n), getpid(), n); }\nvoid drop(void *p) { free(p); }\n";

/// Address and name of each stub, as `objdump -d` writes them.
fn disassembled(library: &str) -> Vec<(u64, String)> {
    let told = Command::new("objdump")
        .args(["-d", library])
        .output()
        .expect("objdump");
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    let stub = |line: &str| {
        let (address, name) = line.strip_suffix(">:")?.split_once(" <")?;
        let address = u64::from_str_radix(address, 16).ok()?;
        (name.ends_with("@plt") && !name.starts_with('*')).then(|| (address, name.to_owned()))
    };
    text.lines().filter_map(stub).collect()
}

#[test]
fn stubs_are_named_as_the_disassembler_names_them() {
    let folder = std::env::temp_dir().join(format!("unidle-stubs-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("folder");
    let source = folder.join("stubs.c");
    fs::write(&source, SOURCE).expect("source");
    for (i, option) in ["-Wl,-z,lazy", "-Wl,-z,now", "-fcf-protection=full", "-fno-plt"]
        .iter()
        .enumerate()
    {
        let library = folder.join(format!("lib{i}.so"));
        let built = Command::new("gcc")
            .args(["-O1", "-fno-builtin", "-shared", "-fPIC", "-s", option, "-o"])
            .args([&library, &source])
            .status();
        assert!(built.expect("a compiler").success());
        let image = Image::new("lib.so", Arc::new(fs::read(&library).expect("library"))).expect("a library");
        let stubs = disassembled(&library.display().to_string());
        assert!(stubs.len() >= 4 || *option == "-fno-plt", "{option}: {stubs:?}");
        for (address, name) in stubs {
            for at in [address, address + 4] {
                let found = image.symbol(at).map(|s| (s.start, s.raw.clone()));
                assert_eq!(found, Some((address, name.clone())), "{option}");
            }
        }
    }
    fs::remove_dir_all(&folder).expect("removed");
}
