//! The configuration of a managed cluster: all of it is ours.
//!
//! Statements never reach the server's log: whatever is wider than these settings was seen to leak
//! passwords and literals.

use std::path::Path;

/// The most connections; some are kept for the admin.
const CONNECTIONS_MAX: u32 = 200;
/// Connections that only the admin can take, so that sandboxes cannot lock the control plane out.
const CONNECTIONS_RESERVED: u32 = 16;
/// Pages of 8 KiB that wait for whoever listens.
const NOTICE_PAGES_MAX: u32 = 8_192;
/// Locks that the server has room for, for each connection; they are one table for all.
const LOCKS_FOR_EACH: u32 = 256;

/// Who may log in over TCP: its members' credentials were given out.
pub(in crate::engine::postgres) const DIRECT_ROLE: &str = "pgsandbox_direct";
/// Whose members may not, for the time being.
pub(in crate::engine::postgres) const WITHHELD_ROLE: &str = "pgsandbox_withheld";

/// Returns `pg_hba.conf`: who may connect, and how. This machine only, with a SCRAM password, sockets too; over TCP none
/// but those whose credentials were given out, and who are not kept out just now.
pub(super) fn hba() -> String {
    format!(
        "# written by pgsandbox at every start\n\
         local all all scram-sha-256\n\
         host all +{WITHHELD_ROLE} all reject\n\
         host all +{DIRECT_ROLE} 127.0.0.1/32 scram-sha-256\n"
    )
}

/// Where a server says what goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Log<'a> {
    /// Nowhere, once it listens. Whoever panics says the statement that it was at, whatever is set, so that none may say
    /// anything while there are statements.
    WhileItStarts,
    /// Into its log all the time, with the rules of a file that admit nobody. Which file that is cannot be changed while the
    /// server runs: it has no statement to say, whatever is written and read anew meanwhile.
    Always(&'a Path),
}

/// Returns the rules by which nobody may connect.
pub(super) fn closed_hba() -> &'static str {
    "# written by pgsandbox for a server that is to say why it does not start\n\
     local all all reject\n\
     host all all all reject\n"
}

/// Returns `postgresql.conf`.
pub(super) fn postgresql_conf(port: u16, socket_dir: &Path, major: u16, log: Log<'_>) -> String {
    let quoted = |path: &Path| path.display().to_string().replace('\'', "''");
    let (log, rules) = match log {
        Log::WhileItStarts => ("", String::new()),
        Log::Always(rules) => ("stderr", format!("hba_file = '{}'\n", quoted(rules))),
    };
    let socket_dir = quoted(socket_dir);
    // Before 17 it is 8 GB, which one sandbox fills while another of its sessions does not listen.
    let notices = if major >= 17 { format!("max_notify_queue_pages = {NOTICE_PAGES_MAX}\n") } else { String::new() };
    format!(
        "# written by pgsandbox at every start\n\
         listen_addresses = '127.0.0.1'\n\
         port = {port}\n\
         unix_socket_directories = '{socket_dir}'\n\
         unix_socket_permissions = 0700\n\
         max_connections = {CONNECTIONS_MAX}\n\
         superuser_reserved_connections = {CONNECTIONS_RESERVED}\n\
         # one table for all: migrations of many tables, and those who would fill it\n\
         max_locks_per_transaction = {LOCKS_FOR_EACH}\n\
         password_encryption = scram-sha-256\n\
         authentication_timeout = 5s\n\
         ssl = off\n\
         # nobody replicates from here, and nothing may outlive its session\n\
         max_prepared_transactions = 0\n\
         max_replication_slots = 0\n\
         max_wal_senders = 0\n\
         wal_level = minimal\n\
         archive_mode = off\n\
         # what a clone's masks replaced is gone with the segments that held it\n\
         wal_recycle = off\n\
         # memory for a developer's machine; see also the limit set at start\n\
         shared_buffers = 128MB\n\
         work_mem = 4MB\n\
         maintenance_work_mem = 64MB\n\
         max_worker_processes = 8\n\
         max_parallel_workers = 4\n\
         max_parallel_workers_per_gather = 2\n\
         jit = off\n\
         dynamic_shared_memory_type = posix\n\
         {notices}{rules}\
         # no statement, parameter or plan in the log\n\
         log_destination = '{log}'\n\
         logging_collector = off\n\
         log_min_messages = fatal\n\
         log_min_error_statement = panic\n\
         log_error_verbosity = terse\n\
         log_statement = none\n\
         log_duration = off\n\
         log_min_duration_statement = -1\n\
         log_min_duration_sample = -1\n\
         log_parameter_max_length = 0\n\
         log_parameter_max_length_on_error = 0\n\
         log_connections = off\n\
         log_disconnections = off\n\
         log_checkpoints = off\n\
         log_lock_waits = off\n\
         log_temp_files = -1\n\
         log_autovacuum_min_duration = -1\n\
         log_line_prefix = '%m [%p] '\n\
         track_activity_query_size = 1024\n\
         datestyle = 'iso, mdy'\n\
         timezone = 'UTC'\n\
         log_timezone = 'UTC'\n\
         lc_messages = 'C'\n\
         default_text_search_config = 'pg_catalog.english'\n"
    )
}

/// Returns how much address space one server process may have, in kB: half of the machine's memory, within bounds.
///
/// One query of a sandbox then fails with `out of memory` instead of taking the machine down.
pub(super) fn address_space_kb(meminfo: &str) -> u64 {
    const GIB_KB: u64 = 1 << 20;
    let total = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok())
        .unwrap_or(4 * GIB_KB);
    // below 1.5 GiB not even one value of the largest size could be handled; above 8 GiB it guards nothing
    (total / 2).clamp(GIB_KB + GIB_KB / 2, 8 * GIB_KB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_guard_is_half_of_the_machine_within_bounds() {
        assert_eq!(address_space_kb("MemTotal:        8388608 kB\nMemFree: 1 kB\n"), 4 << 20);
        assert_eq!(address_space_kb("MemTotal:        1048576 kB\n"), 3 << 19);
        assert_eq!(address_space_kb("MemTotal:      268435456 kB\n"), 8 << 20);
        assert_eq!(address_space_kb(""), 2 << 20);
    }

    #[test]
    fn a_quote_in_the_socket_directory_stays_inside_its_literal() {
        let conf = postgresql_conf(65432, Path::new("/home/o'brien/run"), 15, Log::WhileItStarts);
        assert!(conf.contains("unix_socket_directories = '/home/o''brien/run'\n"));
        assert!(!conf.contains("max_notify_queue_pages") && !conf.contains("hba_file"));
        assert!(
            postgresql_conf(65432, Path::new("/"), 17, Log::WhileItStarts)
                .contains("\nmax_notify_queue_pages = 8192\n")
        );
    }

    #[test]
    fn a_server_whose_log_is_open_has_rules_of_its_own() {
        let conf = postgresql_conf(65432, Path::new("/run"), 15, Log::Always(Path::new("/home/o'brien/closed.conf")));
        assert!(
            conf.contains("\nhba_file = '/home/o''brien/closed.conf'\n")
                && conf.contains("log_destination = 'stderr'\n")
        );
        assert!(closed_hba().lines().skip(1).all(|rule| rule.ends_with(" all reject")));
    }
}
