//! How often the processes that serve sessions of a managed server wake, and what their clients take: where neither moves,
//! nothing is heard.

use std::fs;

use super::ManagedCluster;
use super::process::server_pid;

/// The processes and connections of a server, if it runs here.
pub(in crate::engine::postgres) struct Wakes {
    server: Option<u32>,
    port: Option<u16>,
    /// The kernel's table of connections, as `proc(5)` has it.
    connections: String,
}

impl ManagedCluster {
    /// Returns who is asked how often a session's process woke.
    pub(in crate::engine::postgres) fn wakes(&self) -> Wakes {
        let server = self.existing().and_then(|paths| server_pid(&paths));
        let connections = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
        Wakes { server, port: self.last_port(), connections }
    }
}

impl Wakes {
    /// Returns how often a process woke from a wait, by its number; `None` where it is none of this server's, or not seen from
    /// here.
    pub(in crate::engine::postgres) fn of(&self, pid: i32) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name))?.trim().parse::<u64>().ok();
        // Numbers are those of a namespace: what is not the server's child is another process.
        if field("PPid:")? != u64::from(self.server?) {
            return None;
        }
        field("voluntary_ctxt_switches:")
    }

    /// Returns how many bytes the client at a port has not been sent yet, if it came by TCP.
    pub(in crate::engine::postgres) fn unsent(&self, client_port: i32) -> Option<u64> {
        unsent(&self.connections, self.port?, u16::try_from(client_port).ok()?)
    }
}

/// Finds a connection by the ports of its ends, and reads how long its queue of bytes to be sent is.
fn unsent(connections: &str, port: u16, client_port: u16) -> Option<u64> {
    let (port, client_port) = (format!(":{port:04X}"), format!(":{client_port:04X}"));
    let queues = connections.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, remote, _state) = (fields.next()?, fields.next()?, fields.next()?);
        let queues = fields.next()?;
        (local.ends_with(&port) && remote.ends_with(&client_port)).then_some(queues)
    })?;
    u64::from_str_radix(queues.split_once(':')?.0, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_sent_yet_is_read_from_the_servers_end() {
        let table = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:FF98 00000000:0000 0A 00000000:00000000 00:00000000 00000000   112        0 1 1 0 100 0 0 10 0
   1: 0100007F:C350 0100007F:FF98 01 00000000:00001234 00:00000000 00000000     0        0 2 1 0 20 4 30 10 -1
   2: 0100007F:FF98 0100007F:C350 01 0001F400:00000000 01:00000014 00000000   112        0 3 2 0 20 4 30 10 -1
";
        assert_eq!(unsent(table, 65432, 50000), Some(128_000));
        assert_eq!(unsent(table, 65432, 50001), None);
        assert_eq!(unsent("", 65432, 50000), None);
    }
}
