//! What went over RDMA devices, from the counters that their drivers keep in sysfs.

use std::collections::BTreeMap;
use std::path::Path;

/// Of one port, since the machine started: `(packets, bytes)` sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Port {
    pub sent: (u64, u64),
    pub received: (u64, u64),
}

/// All ports by `device/port`. Nothing where there is no RDMA. `root` is `/sys/class/infiniband`.
pub fn ports(root: &Path) -> BTreeMap<String, Port> {
    let mut out = BTreeMap::new();
    let entries = |path: &Path| {
        std::fs::read_dir(path)
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| (e.file_name().to_string_lossy().into_owned(), e.path()))
    };
    for (device, path) in entries(root) {
        for (port, path) in entries(&path.join("ports")) {
            let counter = |name: &str| -> Option<u64> {
                std::fs::read_to_string(path.join("counters").join(name))
                    .ok()?
                    .trim()
                    .parse()
                    .ok()
            };
            // The data counters are in words of four bytes (InfiniBand specification, PortCountersExtended).
            let way = |data: &str, packets: &str| {
                counter(data).map(|words| (counter(packets).unwrap_or(0), words.saturating_mul(4)))
            };
            if let (Some(sent), Some(received)) = (
                way("port_xmit_data", "port_xmit_packets"),
                way("port_rcv_data", "port_rcv_packets"),
            ) {
                out.insert(format!("{device}/{port}"), Port { sent, received });
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_in_words_and_a_port_without_them_is_left_out() {
        let root = std::env::temp_dir().join(format!("rdma-{}", std::process::id()));
        let counters = root.join("mlx5_0/ports/1/counters");
        std::fs::create_dir_all(&counters).unwrap();
        std::fs::create_dir_all(root.join("mlx5_0/ports/2")).unwrap();
        for (name, value) in [
            ("port_xmit_data", "10\n"),
            ("port_xmit_packets", "3\n"),
            ("port_rcv_data", "20\n"),
            ("port_rcv_packets", "4\n"),
        ] {
            std::fs::write(counters.join(name), value).unwrap();
        }
        let found = ports(&root);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(
            found["mlx5_0/1"],
            Port {
                sent: (3, 40),
                received: (4, 80)
            }
        );
        assert!(ports(&root).is_empty());
    }
}
